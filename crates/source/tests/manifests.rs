//! A folder of manifests, really watched.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use kube_proxy_source::{Counters, Error, Watching, manifests};
use model::{Event, Kind};
use support::*;

fn yaml(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: web}}\n\
         spec: {{clusterIP: 203.0.113.1, ports: [{{port: 80}}]}}\n"
    )
}

/// A folder that a source follows.
struct Followed {
    folder: tempfile::TempDir,
    events: Receiver<Event>,
    /// Where the source's end arrives: only an error at the start ends it.
    ended: Receiver<Error>,
}

impl Followed {
    fn new(prepare: impl FnOnce(&Path)) -> Self {
        Self::at(prepare, Path::to_owned)
    }

    /// Follows `place` in the folder.
    fn at(prepare: impl FnOnce(&Path), place: impl FnOnce(&Path) -> PathBuf) -> Self {
        let folder = tempfile::tempdir().unwrap();
        prepare(folder.path());
        let place = place(folder.path());
        let (sender, events) = channel();
        let (end, ended) = channel();
        let watching = watching(sender, Arc::new(Counters::default()));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let Err(error) = runtime.block_on(manifests::run(&place, watching));
            // a test that has ended hears no more
            let _ = end.send(error);
        });
        Self { folder, events, ended }
    }

    /// One with services `a` in a.yaml and `b` in b.yaml, which have been told.
    fn of_a_and_b() -> Self {
        let followed = Self::new(|folder| {
            fs::write(folder.join("a.yaml"), yaml("a")).unwrap();
            fs::write(folder.join("b.yaml"), yaml("b")).unwrap();
        });
        followed.until_all_is_told();
        followed
    }

    fn until_all_is_told(&self) {
        let mut ended = 0;
        while ended < 4 {
            ended += usize::from(matches!(self.events.recv_timeout(PATIENCE).unwrap(), Event::End(_)));
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The next two events about services, in any order.
    fn next_two(&self) -> [String; 2] {
        let mut two = [self.next(), self.next()];
        two.sort();
        two
    }

    /// The next event about services.
    fn next(&self) -> String {
        loop {
            let event = self.events.recv_timeout(PATIENCE).unwrap();
            if let Some(words) = in_words(&event) {
                return words;
            }
        }
    }
}

#[test]
fn every_kind_is_told_even_when_there_is_nothing_of_it() {
    let followed = Followed::new(|_| ());
    let mut ended = Vec::new();
    while ended.len() < 4 {
        if let Event::End(kind) = followed.events.recv_timeout(PATIENCE).unwrap() {
            ended.push(kind);
        }
    }
    for kind in [Kind::Service, Kind::Slice, Kind::Node, Kind::ServiceCidr] {
        assert!(ended.contains(&kind), "{kind:?}");
    }
}

#[test]
fn a_file_that_is_written_again_or_replaced_takes_effect() {
    let followed = Followed::of_a_and_b();
    fs::write(followed.path("a.yaml"), yaml("c")).unwrap();
    assert_eq!(followed.next_two(), ["has c", "no a"].map(str::to_owned));
    fs::write(followed.path(".next"), yaml("d")).unwrap();
    fs::rename(followed.path(".next"), followed.path("b.yaml")).unwrap();
    assert_eq!(followed.next_two(), ["has d", "no b"].map(str::to_owned));
}

#[test]
fn files_come_and_go() {
    let followed = Followed::of_a_and_b();
    fs::write(followed.path("c.json"), r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"c","namespace":"web"},"spec":{"clusterIP":"203.0.113.3","ports":[{"port":80}]}}"#).unwrap();
    assert_eq!(followed.next(), "has c");
    fs::remove_file(followed.path("a.yaml")).unwrap();
    assert_eq!(followed.next(), "no a");
    fs::write(followed.path("notes.txt"), yaml("ignored")).unwrap();
    fs::write(followed.path("d.yml"), yaml("d")).unwrap();
    assert_eq!(followed.next(), "has d", "only manifests are read");
}

#[test]
fn a_mounted_config_map_that_is_swapped_takes_effect() {
    let followed = Followed::new(|folder| {
        for (name, service) in [("..1", "a"), ("..2", "b")] {
            fs::create_dir(folder.join(name)).unwrap();
            fs::write(folder.join(name).join("web.yaml"), yaml(service)).unwrap();
        }
        symlink("..1", folder.join("..data")).unwrap();
        symlink("..data/web.yaml", folder.join("web.yaml")).unwrap();
    });
    followed.until_all_is_told();
    symlink("..2", followed.path("..next")).unwrap();
    fs::rename(followed.path("..next"), followed.path("..data")).unwrap();
    assert_eq!(followed.next_two(), ["has b", "no a"].map(str::to_owned));
}

#[test]
fn a_broken_file_keeps_what_it_had_and_the_others_go_on() {
    let followed = Followed::of_a_and_b();
    fs::write(followed.path("a.yaml"), "kind: Service\nmetadata: {name: broken\n").unwrap();
    fs::write(followed.path("b.yaml"), yaml("c")).unwrap();
    assert_eq!(followed.next_two(), ["has c", "no b"].map(str::to_owned));
    fs::write(followed.path("a.yaml"), yaml("d")).unwrap();
    assert_eq!(followed.next_two(), ["has d", "no a"].map(str::to_owned));
}

#[test]
fn what_is_no_regular_file_is_not_waited_for() {
    let followed = Followed::of_a_and_b();
    assert!(std::process::Command::new("mkfifo").arg(followed.path("pipe.yaml")).status().unwrap().success());
    symlink("/dev/zero", followed.path("zero.yaml")).unwrap();
    fs::write(followed.path("c.yaml"), yaml("c")).unwrap();
    assert_eq!(followed.next(), "has c");
}

#[test]
fn a_file_that_a_folder_or_a_pipe_takes_the_place_of_has_no_objects_any_more() {
    let followed = Followed::of_a_and_b();
    fs::remove_file(followed.path("a.yaml")).unwrap();
    fs::create_dir(followed.path("a.yaml")).unwrap();
    assert_eq!(followed.next(), "no a");
    symlink("/dev/null", followed.path(".next")).unwrap();
    fs::rename(followed.path(".next"), followed.path("b.yaml")).unwrap();
    assert_eq!(followed.next(), "no b");
    fs::remove_dir(followed.path("a.yaml")).unwrap();
    fs::write(followed.path("a.yaml"), yaml("c")).unwrap();
    assert_eq!(followed.next(), "has c");
}

#[test]
fn what_is_no_regular_file_at_the_start_is_warned_of_once() {
    let log = Log::start();
    let followed = Followed::new(|folder| {
        fs::create_dir(folder.join("folder.yaml")).unwrap();
        symlink("/dev/zero", folder.join("zero.yaml")).unwrap();
        symlink("nowhere", folder.join("link.json")).unwrap();
        fs::create_dir(folder.join("folder")).unwrap();
        fs::write(folder.join("a.yaml"), yaml("a")).unwrap();
    });
    followed.until_all_is_told();
    // everything is looked at again
    fs::remove_dir(followed.path("folder")).unwrap();
    symlink("elsewhere", followed.path("..data")).unwrap();
    fs::write(followed.path("b.yaml"), yaml("b")).unwrap();
    assert_eq!(followed.next(), "has b");
    for (name, what) in
        [("folder.yaml", "a folder"), ("zero.yaml", "no regular file"), ("link.json", "leads nowhere")]
    {
        let told = log.warnings(&[followed.path(name).to_str().unwrap(), what]);
        assert_eq!(told.len(), 1, "{name}: {told:?}");
    }
}

#[test]
fn manifests_are_read_and_told_on_a_thread_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let (sender, threads) = channel();
    let tell = move |_| {
        // a test that has ended hears no more
        let _ = sender.send(std::thread::current().name().map(str::to_owned));
    };
    let counters = Arc::new(Counters::default());
    let watching = Watching { node_name: "n1".to_owned(), tell: Box::new(tell), counters };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let thread = runtime.block_on(async {
        tokio::select! {
            Err(error) = manifests::run(folder.path(), watching) => panic!("{error}"),
            told = tokio::task::spawn_blocking(move || threads.recv_timeout(PATIENCE)) => told.unwrap().unwrap(),
        }
    });
    assert_eq!(thread.as_deref(), Some("manifests"));
}

#[test]
fn an_object_with_a_name_that_no_api_server_takes_is_skipped_with_a_warning() {
    let log = Log::start();
    let followed = Followed::new(|folder| {
        fs::write(folder.join("a.yaml"), format!("{}---\n{}", yaml("Web_Shop"), yaml("a"))).unwrap();
    });
    assert_eq!([followed.next(), followed.next(), followed.next()], ["begin", "has a", "end"]);
    let file = followed.path("a.yaml");
    assert_eq!(log.warnings(&[file.to_str().unwrap(), "metadata.name", "\"Web_Shop\"", "RFC 1123"]).len(), 1);
}

#[test]
fn a_broken_file_at_the_start_is_an_error_with_its_line() {
    let followed = Followed::new(|folder| {
        fs::write(folder.join("a.yaml"), "kind: Service\nmetadata: {name: broken\n").unwrap();
    });
    let error = followed.ended.recv_timeout(PATIENCE).unwrap().to_string();
    assert!(error.contains("a.yaml") && error.contains("line"), "{error}");
}

#[test]
fn a_single_file_may_be_followed() {
    let followed = Followed::at(
        |folder| fs::write(folder.join("all.yaml"), format!("{}---\n{}", yaml("a"), yaml("b"))).unwrap(),
        |folder| folder.join("all.yaml"),
    );
    followed.until_all_is_told();
    fs::write(followed.path("all.yaml"), yaml("a")).unwrap();
    assert_eq!(followed.next(), "no b");
}

#[test]
fn a_service_in_two_files_is_that_of_the_first_until_it_goes() {
    let followed = Followed::of_a_and_b();
    let other = yaml("a").replace("port: 80", "port: 81");
    fs::write(followed.path("z.yaml"), other).unwrap();
    fs::remove_file(followed.path("a.yaml")).unwrap();
    let event = loop {
        match followed.events.recv_timeout(PATIENCE).unwrap() {
            Event::Service(service) if service.key.name() == "a" => break service,
            _ => {}
        }
    };
    assert_eq!(event.ports[0].port, 81);
}
