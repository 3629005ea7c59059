//! Ends the process when the configuration file has other content, for whoever supervises it to start it anew.
//!
//! The folder is watched, not the file, so that a file that is replaced is noticed too, as is a mounted ConfigMap, whose
//! content is swapped by a link beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};
use inotify::{Inotify, WatchMask};

/// Watches `file` from now on.
pub(crate) fn start(file: &Path) -> Result<()> {
    let doing = || format!("watching the configuration file {}", file.display());
    let content = fs::read(file).with_context(doing)?;
    let inotify = watch_folder_of(file).with_context(doing)?;
    let file = file.to_owned();
    thread::Builder::new()
        .name("config-watch".into())
        .spawn(move || {
            let error = match wait_for_other_content(inotify, &file, &content) {
                Ok(()) => anyhow::anyhow!("content of the configuration file {} was updated", file.display()),
                Err(error) => anyhow::Error::new(error).context("watching the configuration file"),
            };
            crate::run::fatal(&error)
        })
        .context("starting a thread")?;
    Ok(())
}

fn watch_folder_of(file: &Path) -> std::io::Result<Inotify> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let inotify = Inotify::init()?;
    let whole = WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::CREATE;
    inotify.watches().add(folder, whole)?;
    Ok(inotify)
}

/// A file that cannot be read is being replaced: more events follow.
fn wait_for_other_content(mut inotify: Inotify, file: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let _events = inotify.read_events_blocking(&mut buffer)?;
        if fs::read(file).is_ok_and(|now| now != content) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Hangs unless the change is seen.
    fn sees(prepare: impl FnOnce(&Path) -> PathBuf, change: impl FnOnce(&Path)) {
        let folder = tempfile::tempdir().unwrap();
        let file = prepare(folder.path());
        let inotify = watch_folder_of(&file).unwrap();
        change(folder.path());
        wait_for_other_content(inotify, &file, b"old").unwrap();
    }

    fn plain(folder: &Path) -> PathBuf {
        fs::write(folder.join("config"), "old").unwrap();
        folder.join("config")
    }

    #[test]
    fn a_file_written_again_is_seen() {
        sees(plain, |folder| fs::write(folder.join("config"), "new").unwrap());
    }

    #[test]
    fn a_file_replaced_is_seen_and_one_touched_is_not() {
        sees(plain, |folder| {
            fs::write(folder.join("config"), "old").unwrap();
            fs::write(folder.join("next"), "new").unwrap();
            fs::rename(folder.join("next"), folder.join("config")).unwrap();
        });
    }

    #[test]
    fn a_mounted_config_map_that_is_swapped_is_seen() {
        let prepare = |folder: &Path| {
            for (name, text) in [("..1", "old"), ("..2", "new")] {
                fs::create_dir(folder.join(name)).unwrap();
                fs::write(folder.join(name).join("config"), text).unwrap();
            }
            symlink("..1", folder.join("..data")).unwrap();
            symlink("..data/config", folder.join("config")).unwrap();
            folder.join("config")
        };
        sees(prepare, |folder| {
            symlink("..2", folder.join("..next")).unwrap();
            fs::rename(folder.join("..next"), folder.join("..data")).unwrap();
        });
    }
}
