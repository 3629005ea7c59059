//! Who another program is. The kernel tells of a change by the name and the id of the thread that made it.

use std::fs;
use std::path::Path;

/// `NAME (process PID)` of the program that the thread belongs to; of the thread, if it cannot be asked for any more.
/// `proc` is where `/proc` is: that of a container may know other threads by the same ids, under other names.
pub(crate) fn of_thread(proc: &Path, name: &str, thread: u32) -> String {
    process(proc, name, thread)
        .unwrap_or_else(|| format!("{name} (thread {thread}, gone or not visible here)"))
}

fn process(proc: &Path, name: &str, thread: u32) -> Option<String> {
    let comm = |id: &str| Some(fs::read_to_string(proc.join(id).join("comm")).ok()?.trim_end().to_owned());
    let same = comm(&thread.to_string())? == name;
    let status = fs::read_to_string(proc.join(thread.to_string()).join("status")).ok().filter(|_| same)?;
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim();
    Some(format!("{} (process {process})", comm(process)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_of_this_thread() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
    }

    #[test]
    fn a_thread_is_told_by_its_program() {
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        let expected = format!("{} (process {})", own.trim_end(), std::process::id());
        let thread = std::thread::Builder::new().name("reconciler".into());
        let told = thread.spawn(|| of_thread(Path::new("/proc"), "reconciler", id_of_this_thread())).unwrap();
        assert_eq!(told.join().unwrap(), expected);
    }

    #[test]
    fn a_thread_of_another_name_or_none_is_told_as_the_kernel_told_it() {
        for thread in [id_of_this_thread(), u32::MAX] {
            let told = of_thread(Path::new("/proc"), "nft", thread);
            assert!(told.starts_with(&format!("nft (thread {thread}")), "{told}");
        }
    }
}
