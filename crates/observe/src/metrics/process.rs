//! What /proc tells about this process, read at each scrape (proc(5), the names of Prometheus' Go client).

use std::fmt::Error;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// The process's own metrics. What /proc does not tell is left out.
#[derive(Debug)]
pub(super) struct Process {
    started: Option<f64>,
}

impl Process {
    pub(super) fn new() -> Self {
        Self { started: start_time() }
    }

    /// When the process was started, seconds since 1970; 0 if that cannot be found out.
    pub(super) fn started(&self) -> f64 {
        self.started.unwrap_or_default()
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let stat = read("/proc/self/stat");
        let stat = stat.as_deref().and_then(Stat::parse);
        let traffic = read("/proc/self/net/netstat");
        let octets = |name| traffic.as_deref().and_then(|text| ip_octets(text, name));
        let bytes = rustix::param::page_size();
        let mut write = |name, help, kind, value: Option<f64>| {
            let Some(value) = value else { return Ok(()) };
            let metric = encoder.encode_descriptor(name, help, None, kind)?;
            match kind {
                MetricType::Counter => ConstCounter::new(value).encode(metric),
                _ => ConstGauge::new(value).encode(metric),
            }
        };
        let (counter, gauge) = (MetricType::Counter, MetricType::Gauge);
        let cpu = stat.as_ref().map(|stat| seconds(stat.cpu));
        write("process_cpu_seconds", "CPU time spent by the process, user and system.", counter, cpu)?;
        write("process_max_fds", "Limit of open file descriptors.", gauge, limit("Max open files"))?;
        write("process_open_fds", "Open file descriptors.", gauge, open_files())?;
        let received = octets("InOctets");
        write(
            "process_network_receive_bytes",
            "Bytes received in the network namespace.",
            counter,
            received,
        )?;
        let sent = octets("OutOctets");
        write("process_network_transmit_bytes", "Bytes sent in the network namespace.", counter, sent)?;
        let resident = stat.as_ref().map(|stat| number(stat.resident_pages.saturating_mul(bytes as u64)));
        write("process_resident_memory_bytes", "Memory in RAM.", gauge, resident)?;
        write(
            "process_start_time_seconds",
            "Start of the process, seconds since 1970.",
            gauge,
            self.started,
        )?;
        let size = stat.as_ref().map(|stat| number(stat.virtual_bytes));
        write("process_virtual_memory_bytes", "Address space in use.", gauge, size)?;
        let most = limit("Max address space");
        write("process_virtual_memory_max_bytes", "Limit of the address space.", gauge, most)
    }
}

/// The fields of `/proc/PID/stat` that are used.
struct Stat {
    /// User and system time, ticks.
    cpu: u64,
    /// Start after boot, ticks.
    start: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The second field, the program's name in parentheses, may hold anything.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu: field(14)?.saturating_add(field(15)?),
            start: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

fn start_time() -> Option<f64> {
    let stat = Stat::parse(&read("/proc/self/stat")?)?;
    let system = read("/proc/stat")?;
    let boot = system.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(boot.trim().parse::<f64>().ok()? + seconds(stat.start))
}

/// A soft limit of this process.
fn limit(name: &str) -> Option<f64> {
    let limits = read("/proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(number(u64::MAX)),
        value => value.parse().ok(),
    }
}

fn open_files() -> Option<f64> {
    // One of them is the descriptor that lists them.
    let files = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    Some(number(files as u64))
}

/// A column of the `IpExt` pair of lines, names above values.
fn ip_octets(text: &str, name: &str) -> Option<f64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let column = names.split_whitespace().position(|n| n == name)?;
    values.split_whitespace().nth(column)?.parse().ok()
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

#[expect(clippy::cast_precision_loss, reason = "what a float cannot hold is not looked at to the last byte")]
fn number(value: u64) -> f64 {
    value as f64
}

fn seconds(ticks: u64) -> f64 {
    number(ticks) / number(rustix::param::clock_ticks_per_second())
}

#[cfg(test)]
mod tests {
    use super::{Stat, ip_octets};

    #[test]
    fn a_program_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let text =
            "812 (a) b (c) S 1 812 812 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 4 0 9000 1437573120 1544 18446";
        let stat = Stat::parse(text).expect("the line has all fields");
        assert_eq!((stat.cpu, stat.start), (300, 9000));
        assert_eq!((stat.virtual_bytes, stat.resident_pages), (1_437_573_120, 1544));
    }

    #[test]
    fn what_is_not_there_or_cut_off_is_left_out() {
        assert!(Stat::parse("").is_none());
        assert!(Stat::parse("812 (x) S 1").is_none());
        assert_eq!(ip_octets("IpExt: InOctets OutOctets\nIpExt: 7 9\n", "OutOctets"), Some(9.0));
        assert_eq!(ip_octets("IpExt: InOctets\n", "InOctets"), None);
        assert_eq!(ip_octets("IpExt: A\nIpExt: 1\n", "InOctets"), None);
    }
}
