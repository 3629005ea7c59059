//! Hears from the kernel, by inotify, which files have changed.
//!
//! Only what is whole is acted upon: a file that has been closed after writing, renamed, linked or removed. One that
//! is being written is left alone. Folders are watched rather than files, so that editors that write a new file and
//! rename it, and folders whose content is swapped by a link (a mounted ConfigMap's `..data`), are heard too.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask};
use tokio::time::{Instant, sleep, timeout_at};

use super::Place;
use crate::Error;

/// A change is often several events (a backup is made, the new file takes the name): they are taken together when they
/// come within this time.
const TOGETHER: Duration = Duration::from_millis(5);

/// How often a folder that is gone is looked for, where nothing else tells that it is back.
const MISSING: Duration = Duration::from_secs(1);

/// What has changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// These files, which may be gone.
    Files(BTreeSet<PathBuf>),
    /// Perhaps everything.
    Anything,
}

/// The watches of the folders that matter.
pub(super) struct Changes<'a> {
    place: &'a Place,
    events: EventStream<Vec<u8>>,
    watches: BTreeMap<PathBuf, Watched>,
}

/// A watch, and the folder that it is on: another may take its place under the same path.
struct Watched {
    descriptor: WatchDescriptor,
    inode: (u64, u64),
}

/// One event.
struct Heard {
    folder: Option<PathBuf>,
    name: Option<OsString>,
    mask: EventMask,
}

impl<'a> Changes<'a> {
    /// Begins to watch.
    pub(super) fn watch(place: &'a Place) -> Result<Self, Error> {
        let error = |error: io::Error| Error::Manifests {
            path: place.path.clone(),
            problem: format!(
                "cannot be watched by inotify: {error}; see fs.inotify.max_user_instances and max_user_watches"
            ),
        };
        let events = Inotify::init()
            .and_then(|inotify| inotify.into_event_stream(vec![0; 16 << 10]))
            .map_err(error)?;
        let mut changes = Self { place, events, watches: BTreeMap::new() };
        for folder in changes.own_folders() {
            changes.add(&folder).map_err(error)?;
        }
        Ok(changes)
    }

    /// Watches the place itself, and the folders in which its files really are.
    pub(super) fn follow(&mut self, homes: &BTreeSet<PathBuf>) {
        let mut wanted = self.own_folders();
        wanted.extend(homes.iter().cloned());
        let stale: Vec<PathBuf> = self
            .watches
            .iter()
            .filter(|(folder, watched)| !wanted.contains(*folder) || inode(folder) != Some(watched.inode))
            .map(|(folder, _)| folder.clone())
            .collect();
        for folder in stale {
            if let Some(watched) = self.watches.remove(&folder) {
                // fails when the folder is gone, and the watch with it
                let _ = self.events.watches().remove(watched.descriptor);
            }
        }
        for folder in self.own_folders().iter().chain(homes) {
            if let Err(error) = self.add(folder) {
                tracing::debug!(folder = %folder.display(), "The folder cannot be watched: {error}");
            }
        }
    }

    /// Waits for the next change.
    pub(super) async fn next(&mut self) -> Change {
        let mut change = loop {
            let own = self.own_folders();
            if own.iter().any(|folder| !self.is_watched(folder)) {
                sleep(MISSING).await;
                if own.iter().all(|folder| folder.is_dir()) {
                    return Change::Anything;
                }
                continue;
            }
            let heard = self.read().await;
            if let Some(change) = self.meaning(&heard) {
                break change;
            }
        };
        // further ones of the same change
        let end = Instant::now() + TOGETHER;
        while let Ok(heard) = timeout_at(end, self.read()).await {
            change = match (change, self.meaning(&heard)) {
                (Change::Files(mut files), Some(Change::Files(more))) => {
                    files.extend(more);
                    Change::Files(files)
                }
                (change, None) => change,
                (_, Some(_)) => Change::Anything,
            };
        }
        change
    }

    /// The folder (or the folder of the file), and that in which it is called by its name.
    fn own_folders(&self) -> BTreeSet<PathBuf> {
        let path = &self.place.path;
        let parent = match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Some(Path::new(".")),
            other => other,
        };
        let mut folders: BTreeSet<PathBuf> = parent.map(Path::to_owned).into_iter().collect();
        if self.place.is_folder {
            folders.insert(path.clone());
        }
        folders
    }

    fn add(&mut self, folder: &Path) -> io::Result<()> {
        let inode = inode(folder).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        // the kernel has one watch an inode, whatever path leads to it
        if self.watches.values().any(|watched| watched.inode == inode) {
            return Ok(());
        }
        let mask = WatchMask::CREATE
            | WatchMask::CLOSE_WRITE
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        let descriptor = self.events.watches().add(folder, mask)?;
        self.watches.insert(folder.to_owned(), Watched { descriptor, inode });
        Ok(())
    }

    fn is_watched(&self, folder: &Path) -> bool {
        inode(folder).is_some_and(|inode| self.watches.values().any(|watched| watched.inode == inode))
    }

    async fn read(&mut self) -> Heard {
        if let Some(Ok(event)) = self.events.next().await {
            let known = self.watches.iter().find(|(_, watched)| watched.descriptor == event.wd);
            return Heard {
                folder: known.map(|(folder, _)| folder.clone()),
                name: event.name,
                mask: event.mask,
            };
        }
        // the queue cannot be read: what was lost is not known
        sleep(MISSING).await;
        Heard { folder: None, name: None, mask: EventMask::Q_OVERFLOW }
    }

    /// What an event means, if anything.
    fn meaning(&self, heard: &Heard) -> Option<Change> {
        if heard.mask.contains(EventMask::Q_OVERFLOW) {
            return Some(Change::Anything);
        }
        let folder = heard.folder.as_ref()?;
        let Some(name) = &heard.name else {
            let own = *folder == self.place.path;
            return (own && !heard.mask.contains(EventMask::IGNORED)).then_some(Change::Anything);
        };
        let path = if folder.as_os_str() == "." { PathBuf::from(name) } else { folder.join(name) };
        if heard.mask.contains(EventMask::CREATE) && !is_whole(&path) {
            return None;
        }
        if path == self.place.path && self.place.is_folder {
            return Some(Change::Anything);
        }
        if self.place.is_manifest(&path) {
            return Some(Change::Files(BTreeSet::from([path])));
        }
        // in a folder that links lead through, or the link itself that is swapped
        let swapped = name.as_encoded_bytes().starts_with(b"..");
        let elsewhere = !self.own_folders().contains(folder);
        (swapped || elsewhere).then_some(Change::Anything)
    }
}

/// Links are whole when they are created; other files when they are closed.
fn is_whole(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file() || metadata.nlink() > 1)
}

fn inode(folder: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(folder).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}
