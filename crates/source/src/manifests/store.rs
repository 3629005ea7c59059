//! What the files say, and what of it has been told.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::{Event, Kind, ObjectKey, Service, ServiceType};

use super::document::{self, Broken, Document};
use super::unreadable;
use crate::complaints::{Complaints, Fault};
use crate::{Counters, Error, decode};

/// What makes two objects the same one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Id {
    Node,
    ServiceCidr(Box<str>),
    Service(ObjectKey),
    Slice(ObjectKey),
}

impl Id {
    /// Of an event about an object.
    fn of(event: &Event) -> Option<Self> {
        Some(match event {
            Event::Service(Service { key, .. }) | Event::ServiceDeleted(key) => Self::Service(key.clone()),
            Event::Slice(slice) => Self::Slice(slice.key.clone()),
            Event::SliceDeleted(key) => Self::Slice(key.clone()),
            Event::Node(_) | Event::NodeDeleted => Self::Node,
            Event::ServiceCidr(name, _) | Event::ServiceCidrDeleted(name) => Self::ServiceCidr(name.clone()),
            Event::Begin(_) | Event::End(_) => return None,
        })
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Node => Kind::Node,
            Self::ServiceCidr(_) => Kind::ServiceCidr,
            Self::Service(_) => Kind::Service,
            Self::Slice(_) => Kind::Slice,
        }
    }

    fn removal(&self) -> Event {
        match self {
            Self::Node => Event::NodeDeleted,
            Self::ServiceCidr(name) => Event::ServiceCidrDeleted(name.clone()),
            Self::Service(key) => Event::ServiceDeleted(key.clone()),
            Self::Slice(key) => Event::SliceDeleted(key.clone()),
        }
    }
}

/// The largest manifest that is read.
const LARGEST: u64 = 64 << 20;

/// What a file says: its objects, each as the event that tells it.
type Said = BTreeMap<Id, Event>;

/// All files, and what has been told of them.
pub(super) struct Store {
    own_node: String,
    counters: Arc<Counters>,
    complaints: Complaints,
    files: BTreeMap<PathBuf, Said>,
    told: Said,
}

impl Store {
    pub(super) fn new(own_node: &str, counters: Arc<Counters>) -> Self {
        Self {
            own_node: own_node.to_owned(),
            counters,
            complaints: Complaints::default(),
            files: BTreeMap::new(),
            told: Said::new(),
        }
    }

    /// Reads all files for the first time; one that cannot be parsed is an error.
    pub(super) fn load(&mut self, files: &[PathBuf]) -> Result<(), Error> {
        for file in files {
            let Some(text) = self.read(file).map_err(|error| unreadable(file, &error))? else { continue };
            let documents = document::parse(file, &text)
                .map_err(|broken| Error::Manifests { path: file.clone(), problem: located(&broken) })?;
            self.take(file, documents);
        }
        Ok(())
    }

    /// Reads all files again, and forgets those that are gone.
    pub(super) fn reload_all(&mut self, files: &[PathBuf]) {
        self.files.retain(|known, _| files.contains(known));
        for file in files {
            self.reload(file);
        }
    }

    /// Reads one file again.
    pub(super) fn reload(&mut self, file: &Path) {
        let stays = "the objects that it had before stay";
        let text = match self.read(file) {
            Ok(Some(text)) => text,
            Ok(None) => {
                self.files.remove(file);
                return;
            }
            Err(error) => {
                tracing::warn!("{}; {stays}", unreadable(file, &error));
                return;
            }
        };
        match document::parse(file, &text) {
            Ok(documents) => self.take(file, documents),
            Err(broken) => tracing::warn!("manifests {}: {}; {stays}", file.display(), located(&broken)),
        }
    }

    /// Reads a regular file; nothing where there is none: another kind (a pipe, a device) may never end, or never begin.
    fn read(&mut self, file: &Path) -> io::Result<Option<String>> {
        let found = match std::fs::metadata(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            found => Some(found?),
        };
        let odd = match &found {
            None if file.is_symlink() => Some("a link that leads nowhere"),
            Some(metadata) if metadata.is_dir() => Some("a folder, and folders in the folder are not read"),
            Some(metadata) if !metadata.is_file() => Some("no regular file"),
            _ => None,
        };
        let object = format!("manifests {}", file.display());
        let fault: Vec<_> = odd.map(|what| Fault::new("type", what)).into_iter().collect();
        for Fault { problem, .. } in self.complaints.news(&object, &fault) {
            tracing::warn!("{object}: is {problem}; it has no objects");
        }
        match found.filter(|_| odd.is_none()) {
            None => Ok(None),
            Some(metadata) if metadata.len() > LARGEST => {
                Err(io::Error::other("it is larger than 64 MiB; split it"))
            }
            Some(_) => std::fs::read_to_string(file).map(Some),
        }
    }

    /// The folders in which the files really are, which is elsewhere for links.
    pub(super) fn homes(&self) -> BTreeSet<PathBuf> {
        let real = self.files.keys().filter_map(|file| file.canonicalize().ok());
        real.filter_map(|file| file.parent().map(Path::to_owned)).collect()
    }

    /// What has to be told for everything (or everything of one kind) to be as the files say.
    pub(super) fn differences(&mut self, only: Option<Kind>) -> Vec<Event> {
        let wanted = |id: &Id| only.is_none_or(|kind| id.kind() == kind);
        let said = self.merged();
        let mut events: Vec<Event> =
            self.told.keys().filter(|id| wanted(id) && !said.contains_key(id)).map(Id::removal).collect();
        self.told.retain(|id, _| !wanted(id) || said.contains_key(id));
        for (id, event) in said.into_iter().filter(|(id, _)| wanted(id)) {
            if self.told.get(&id) != Some(&event) {
                events.push(event.clone());
                self.told.insert(id, event);
            }
        }
        events
    }

    /// The objects of all files. Of two of the same name the one in the first file has it.
    fn merged(&mut self) -> Said {
        let mut said = Said::new();
        let mut from: BTreeMap<&Id, &Path> = BTreeMap::new();
        for (file, objects) in &self.files {
            for (id, event) in objects {
                let Some(first) = from.get(id) else {
                    from.insert(id, file);
                    said.insert(id.clone(), event.clone());
                    continue;
                };
                let problem = format!("is in {} too, which has it", first.display());
                let object =
                    format!("manifests {}: {} {}", file.display(), decode::kind_name(id.kind()), id_text(id));
                self.complaints.warn(&object, &[Fault::new("metadata.name", problem)]);
            }
        }
        said
    }

    /// Takes over what a file says. Of an object that cannot be decoded the last good state stays.
    fn take(&mut self, file: &Path, documents: Vec<Document>) {
        let before = self.files.remove(file).unwrap_or_default();
        let mut said = Said::new();
        for Document { kind, line, object } in documents {
            let mut faults = Vec::new();
            let mut event = decode::value(kind, &object, &self.own_node, &mut faults);
            if let Some(event) = &event {
                unserved(event, &object, &mut faults);
            }
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
            let name = [text("namespace"), text("name")]
                .iter()
                .filter(|part| !part.is_empty())
                .copied()
                .collect::<Vec<_>>();
            let name = name.join("/");
            let object = format!("manifests {}:{line}: {} {name}", file.display(), decode::kind_name(kind));
            if !faults.is_empty() {
                self.counters.skip(kind);
            }
            self.complaints.warn(&object, &faults);
            if event.is_none() && !faults.is_empty() {
                let same = |id: &&Id| id.kind() == kind && (kind == Kind::Node || id_text(id) == name);
                event = before.keys().find(same).and_then(|id| before.get(id)).cloned();
            }
            let Some((id, event)) = event.and_then(|event| Some((Id::of(&event)?, event))) else { continue };
            if let Entry::Vacant(free) = said.entry(id) {
                free.insert(event);
            } else {
                let fault =
                    Fault::new("metadata.name", "is that of an earlier object of the file, which has it");
                self.complaints.warn(&object, &[fault]);
            }
        }
        // what only says that it is not served is nothing to tell
        said.retain(|_, event| !matches!(event, Event::ServiceDeleted(_) | Event::SliceDeleted(_)));
        self.files.insert(file.to_owned(), said);
    }
}

fn id_text(id: &Id) -> &str {
    match id {
        Id::Node => "",
        Id::ServiceCidr(name) => name,
        Id::Service(key) | Id::Slice(key) => key.as_str(),
    }
}

fn located(broken: &Broken) -> String {
    match broken.line {
        Some(line) => format!("line {line}: {}", broken.problem),
        None => broken.problem.clone(),
    }
}

/// Tells what an API server would have allocated and nobody can here.
fn unserved(event: &Event, object: &serde_json::Value, faults: &mut Vec<Fault>) {
    match event {
        Event::ServiceDeleted(_) => {
            let spec = &object["spec"];
            let headless = spec["clusterIP"] == "None" || spec["clusterIPs"][0] == "None";
            let foreign = !object["metadata"]["labels"]["service.kubernetes.io/service-proxy-name"].is_null();
            if !headless && !foreign && spec["type"] != "ExternalName" && faults.is_empty() {
                let problem =
                    "is missing, and there is no API server that would choose one; the service is not served";
                faults.push(Fault::new("spec.clusterIP", problem));
            }
        }
        Event::Service(service) if service.kind == ServiceType::NodePort => {
            for (index, port) in service.ports.iter().enumerate().filter(|(_, port)| port.node_port.is_none())
            {
                let problem = format!(
                    "is missing, and there is no API server that would choose one; port {} has its cluster IP only",
                    port.port
                );
                faults.push(Fault::new(format!("spec.ports[{index}].nodePort"), problem));
            }
        }
        _ => {}
    }
}
