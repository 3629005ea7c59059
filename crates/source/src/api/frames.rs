//! Cuts the bytes of a response into the pieces that are decoded one by one, wherever its chunks end.

/// The longest piece that is taken. An object in etcd has at most 1.5 MiB; this leaves room for what JSON adds.
const LONGEST: usize = 32 << 20;

/// Capacity that a buffer keeps after a long piece.
const KEPT: usize = 64 << 10;

/// A piece is longer than any object can be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// The bytes of a piece that has not ended yet.
#[derive(Default)]
struct Rest(Vec<u8>);

impl Rest {
    fn add(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.0.len() + bytes.len() > LONGEST {
            return Err(TooLong);
        }
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn clear(&mut self) {
        self.0.clear();
        self.0.shrink_to(KEPT);
    }
}

/// Lines of a watch.
#[derive(Default)]
pub(super) struct Lines {
    rest: Rest,
}

impl Lines {
    /// What has come of a line that has not ended.
    pub(super) fn rest(&self) -> &[u8] {
        &self.rest.0
    }

    /// Takes a chunk and calls `each` with every line that it completes, without the line's end.
    pub(super) fn push<E: From<TooLong>>(
        &mut self,
        mut chunk: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(end) = chunk.iter().position(|&byte| byte == b'\n') {
            let (line, after) = (&chunk[..end], &chunk[end + 1..]);
            if self.rest.0.is_empty() {
                if !line.trim_ascii().is_empty() {
                    each(line)?;
                }
            } else {
                self.rest.add(line)?;
                each(&self.rest.0)?;
                self.rest.clear();
            }
            chunk = after;
        }
        Ok(self.rest.add(chunk)?)
    }
}

/// Items of a list. The only array of objects directly in a list is `items`, so an item is an object whose nesting is
/// `{ [ {`. What is around the items, the envelope, is kept.
#[derive(Default)]
pub(super) struct Items {
    item: Rest,
    envelope: Rest,
    depth: usize,
    in_array: bool,
    in_string: bool,
    escaped: bool,
}

impl Items {
    /// Takes a chunk and calls `each` with every item that it completes.
    pub(super) fn push(&mut self, chunk: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), TooLong> {
        let mut start = 0;
        let mut at = 0;
        while at < chunk.len() {
            let byte = chunk[at];
            at += 1;
            if self.in_string {
                self.string_byte(byte);
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => {
                    if self.depth == 1 {
                        self.in_array = byte == b'[';
                    }
                    if self.depth == 2 && self.in_array && byte == b'{' {
                        self.envelope.add(&chunk[start..at - 1])?;
                        start = at - 1;
                    }
                    self.depth += 1;
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 2 && self.in_array && byte == b'}' {
                        self.end_item(&chunk[start..at], &mut each)?;
                        start = at;
                    }
                }
                b',' if self.depth == 2 && self.in_array => {
                    self.envelope.add(&chunk[start..at - 1])?;
                    start = at;
                }
                _ => {}
            }
        }
        let rest = if self.depth > 2 && self.in_array { &mut self.item } else { &mut self.envelope };
        rest.add(&chunk[start..])
    }

    /// The list without its items.
    pub(super) fn envelope(&self) -> &[u8] {
        &self.envelope.0
    }

    fn string_byte(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => self.in_string = false,
            _ => {}
        }
    }

    fn end_item(&mut self, tail: &[u8], each: &mut impl FnMut(&[u8])) -> Result<(), TooLong> {
        if self.item.0.is_empty() {
            each(tail);
        } else {
            self.item.add(tail)?;
            each(&self.item.0);
            self.item.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let mut found = Vec::new();
        let mut lines = Lines::default();
        for chunk in chunks {
            lines
                .push(chunk, |line| {
                    found.push(String::from_utf8_lossy(line).into_owned());
                    Ok::<_, TooLong>(())
                })
                .unwrap();
        }
        found
    }

    fn items(chunks: &[&[u8]]) -> (Vec<String>, String) {
        let mut found = Vec::new();
        let mut items = Items::default();
        for chunk in chunks {
            items.push(chunk, |item| found.push(String::from_utf8_lossy(item).into_owned())).unwrap();
        }
        (found, String::from_utf8_lossy(items.envelope()).into_owned())
    }

    #[test]
    fn a_line_is_whole_however_the_chunks_fall() {
        assert_eq!(lines(&[b"one\ntwo\n\nthr", b"ee", b"\nfour"]), ["one", "two", "three"]);
    }

    #[test]
    fn items_are_cut_out_and_the_envelope_stays() {
        let list = br#"{"kind":"L","metadata":{"resourceVersion":"7","a":[{"b":1}]},"items":[{"n":"}]\"{"},{"m":[{}]}],"z":1}"#;
        let (found, envelope) = items(&[list]);
        assert_eq!(found, [r#"{"n":"}]\"{"}"#, r#"{"m":[{}]}"#]);
        assert_eq!(
            envelope,
            r#"{"kind":"L","metadata":{"resourceVersion":"7","a":[{"b":1}]},"items":[],"z":1}"#
        );
    }

    #[test]
    fn a_status_in_place_of_a_list_is_all_envelope() {
        let status = br#"{"kind":"Status","details":{"causes":[{"reason":"x"}]},"code":410}"#;
        let (found, envelope) = items(&[status]);
        assert!(found.is_empty());
        assert_eq!(envelope.as_bytes(), status);
    }

    #[test]
    fn a_piece_without_end_is_refused() {
        let mut lines = Lines::default();
        let mut results = (0..=LONGEST >> 20).map(|_| lines.push(&vec![b'x'; 1 << 20], |_| Ok(())));
        assert_eq!(results.find(Result::is_err), Some(Err(TooLong)));
    }

    proptest! {
        #[test]
        fn the_cut_does_not_depend_on_chunks(cuts in proptest::collection::vec(0usize..120, 0..6)) {
            let list = br#"{"metadata":{"resourceVersion":"7"},"items":[{"n":"a,\"b"},{"o":{"p":[1,2]}},{}]}"#;
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(list.len())).collect();
            cuts.extend([0, list.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &list[pair[0]..pair[1]]).collect();
            prop_assert_eq!(items(&chunks), items(&[list]));
        }
    }
}
