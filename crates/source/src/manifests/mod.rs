//! Objects from a file or folder of manifests: a proxy without a cluster.
//!
//! Files named `*.yaml`, `*.yml` or `*.json` with Services, EndpointSlices, the own Node and ServiceCIDRs, as they are
//! given to `kubectl apply`, in documents of their own or in Lists. Other kinds and subfolders are passed over. What
//! an API server would fill in, and what can be filled in without one, is filled in.
//!
//! Every change of a file takes effect at once. A file that cannot be parsed, or an object in it that has a field of
//! the wrong type, is reported with its line, and what it said before stays.

mod changes;
mod document;
mod store;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::thread;

use model::{Event, Kind};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::{Error, Watching};
use changes::{Change, Changes};
use store::Store;

/// Loads the manifests, tells their objects, and then tells what changes, for ever.
///
/// All kinds are told between [`Event::Begin`] and [`Event::End`] at first, single changes after that. Files are read, and
/// events told, on a thread of its own: a disk that is slow, or a file that is large, holds up nobody else.
///
/// # Errors
/// At start: the path cannot be read or watched, or a file is no YAML or JSON. Later nothing is an error.
pub async fn run(path: &Path, watching: Watching) -> Result<Infallible, Error> {
    let error = |problem: String| Error::Manifests { path: path.to_owned(), problem };
    let place = path.to_owned();
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|cause| error(format!("starting a runtime: {cause}")))?;
    let (sender, ended) = oneshot::channel();
    let follow = move || {
        // who does not wait any more does not need to know
        let _ = sender.send(runtime.block_on(follow(&place, &watching)));
    };
    let thread = thread::Builder::new().name("manifests".into()).spawn(follow);
    thread.map_err(|cause| error(format!("starting a thread: {cause}")))?;
    ended.await.unwrap_or_else(|_| Err(error("the thread that reads them has ended".to_owned())))
}

async fn follow(path: &Path, watching: &Watching) -> Result<Infallible, Error> {
    let place = Place::find(path)?;
    // watched before it is read, so that no change falls in between
    let mut changes = Changes::watch(&place)?;
    let mut store = Store::new(&watching.node_name, watching.counters.clone());
    store.load(&place.files()?)?;
    changes.follow(&store.homes());
    for kind in [Kind::Node, Kind::ServiceCidr, Kind::Service, Kind::Slice] {
        (watching.tell)(Event::Begin(kind));
        store.differences(Some(kind)).into_iter().for_each(&watching.tell);
        (watching.tell)(Event::End(kind));
    }
    loop {
        match changes.next().await {
            Change::Files(files) => files.iter().for_each(|file| store.reload(file)),
            Change::Anything => match place.files() {
                Ok(files) => store.reload_all(&files),
                Err(error) => tracing::warn!("{error}; the objects of the last good state stay"),
            },
        }
        changes.follow(&store.homes());
        store.differences(None).into_iter().for_each(&watching.tell);
    }
}

/// What was given: a file or a folder.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    is_folder: bool,
}

impl Place {
    fn find(path: &Path) -> Result<Self, Error> {
        let metadata = std::fs::metadata(path).map_err(|error| unreadable(path, &error))?;
        if !metadata.is_dir() && !metadata.is_file() {
            let problem = "is neither a folder nor a regular file".to_owned();
            return Err(Error::Manifests { path: path.to_owned(), problem });
        }
        Ok(Self { path: path.to_owned(), is_folder: metadata.is_dir() })
    }

    /// What is called as manifests are, sorted by name.
    fn files(&self) -> Result<Vec<PathBuf>, Error> {
        if !self.is_folder {
            return Ok(vec![self.path.clone()]);
        }
        let entries = std::fs::read_dir(&self.path).map_err(|error| unreadable(&self.path, &error))?;
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| unreadable(&self.path, &error))?.path();
            if self.is_manifest(&path) {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }

    /// Whether a file of this path is read.
    fn is_manifest(&self, path: &Path) -> bool {
        if !self.is_folder {
            return path == self.path;
        }
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let extension = path.extension().and_then(|extension| extension.to_str());
        !hidden && path.parent() == Some(&self.path) && matches!(extension, Some("yaml" | "yml" | "json"))
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::Manifests { path: path.to_owned(), problem: format!("cannot be read: {error}") }
}
