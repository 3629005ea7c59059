//! klog's text form (k8s.io/klog/v2, structured).

use std::fmt::Write;

use jiff::civil::DateTime;
use tracing::Metadata;

use super::Severity;
use super::fields::{Fields, Value};

/// Appends one event, with its line break.
pub(super) fn write(
    line: &mut String,
    time: DateTime,
    pid: u32,
    severity: Severity,
    metadata: &Metadata<'_>,
    fields: &Fields,
) {
    let letter = match severity {
        Severity::Info => 'I',
        Severity::Warning => 'W',
        Severity::Error => 'E',
    };
    // Writing to a string cannot fail.
    let _ = write!(
        line,
        "{letter}{:02}{:02} {:02}:{:02}:{:02}.{:06} {pid:7} {}:{}] ",
        time.month(),
        time.day(),
        time.hour(),
        time.minute(),
        time.second(),
        time.subsec_nanosecond() / 1000,
        super::file_name(metadata, 1),
        metadata.line().unwrap_or_default(),
    );
    quote(line, &fields.message);
    for (name, value) in &fields.values {
        line.push(' ');
        line.push_str(name);
        line.push('=');
        match value {
            Value::Plain(text) => line.push_str(text),
            Value::Text(text) if text.contains('\n') => block(line, text),
            Value::Text(text) => quote(line, text),
        }
    }
    line.push('\n');
}

/// A text of several lines, each indented by a tab, so that no line of it can pass for a log line.
fn block(line: &mut String, text: &str) {
    line.push_str("<\n");
    for part in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        line.push('\t');
        for c in part.chars() {
            if c == '\t' || c == '"' || c == '\'' || c == '\\' { line.push(c) } else { escape(line, c) }
        }
        line.push('\n');
    }
    line.push_str(" >");
}

/// `text` in double quotes, with the escapes of Go's `strconv.Quote`.
fn quote(line: &mut String, text: &str) {
    line.push('"');
    for c in text.chars() {
        escape(line, c);
    }
    line.push('"');
}

fn escape(line: &mut String, c: char) {
    match c {
        '"' => line.push_str("\\\""),
        '\\' => line.push_str("\\\\"),
        '\n' => line.push_str("\\n"),
        '\r' => line.push_str("\\r"),
        '\t' => line.push_str("\\t"),
        '\'' => line.push('\''),
        ' '..='~' => line.push(c),
        // Rust escapes what it holds unprintable; the digits are to be Go's.
        _ if c.escape_debug().len() > 1 => {
            let code = u32::from(c);
            let _ = match code {
                0..0x80 => write!(line, "\\x{code:02x}"),
                0x80..0x1_0000 => write!(line, "\\u{code:04x}"),
                _ => write!(line, "\\U{code:08x}"),
            };
        }
        _ => line.push(c),
    }
}

#[cfg(test)]
mod tests {
    use super::{block, quote};

    #[test]
    fn quotes_like_go() {
        for (text, expected) in [
            ("plain", r#""plain""#),
            ("it's \"so\"", r#""it's \"so\"""#),
            ("a\\b\tc\rd", r#""a\\b\tc\rd""#),
            ("bell \u{7} esc \u{1b} nul \0", r#""bell \x07 esc \x1b nul \x00""#),
            ("Zürich 東京 🦀", "\"Zürich 東京 🦀\""),
            ("bidi \u{202e} wide \u{a0}", r#""bidi \u202e wide \u00a0""#),
        ] {
            let mut line = String::new();
            quote(&mut line, text);
            assert_eq!(line, expected);
        }
    }

    #[test]
    fn indents_every_line_of_a_block() {
        let mut line = String::new();
        block(&mut line, "one \"1\"\nI1201 two\u{1b}\n\n");
        assert_eq!(line, "<\n\tone \"1\"\n\tI1201 two\\x1b\n\t\n >");
    }
}
