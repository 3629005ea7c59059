//! Network namespaces without names: one lives as long as a file descriptor, a thread or a process holds it, so that
//! nothing is left behind however this program ends.
//!
//! Being in a namespace is a property of a thread. [`Namespace::run`] and [`Namespace::spawn`] therefore use threads of
//! their own, and never move the caller.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread::{self, JoinHandle};

use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Why namespaces cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A network namespace could not be made.
    #[error("making a network namespace: {0}; this needs root (CAP_SYS_ADMIN) or a user namespace")]
    Make(#[source] io::Error),
    /// A network namespace could not be entered.
    #[error("entering a network namespace: {0}")]
    Enter(#[source] io::Error),
    /// The system does not allow this user to be root in a user namespace.
    #[error(
        "making a user namespace: {0}; this system forbids it to ordinary users (look at the sysctls \
         kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns and \
         user.max_user_namespaces, or at the container's seccomp profile): run this as root instead"
    )]
    User(#[source] io::Error),
}

/// A network namespace held by a file descriptor.
#[derive(Debug)]
pub struct Namespace {
    fd: OwnedFd,
}

impl Namespace {
    /// Makes an empty namespace: its only link is `lo`, which is down.
    pub fn new() -> Result<Self, Error> {
        thread::scope(|scope| {
            let made = thread::Builder::new().name("netns".into()).spawn_scoped(scope, || {
                // SAFETY: NEWNET touches only which network this new thread sees; no memory, descriptor table or
                // credential that other threads rely on.
                unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
                Self::of_this_thread()
            });
            made.and_then(joined).map_err(Error::Make)
        })
    }

    /// The namespace the calling thread is in.
    pub fn current() -> Result<Self, Error> {
        Self::of_this_thread().map_err(Error::Enter)
    }

    fn of_this_thread() -> io::Result<Self> {
        Ok(Self { fd: File::open("/proc/thread-self/ns/net")?.into() })
    }

    /// Runs `work` on a thread inside the namespace and waits for it. A panic of `work` goes on in the caller.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        thread::scope(|scope| {
            let done = thread::Builder::new().name("netns".into()).spawn_scoped(scope, || {
                enter(self.as_fd())?;
                Ok(work())
            });
            done.and_then(joined).map_err(Error::Enter)
        })
    }

    /// Starts a thread inside the namespace. It keeps the namespace alive while it runs.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: String,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, Error> {
        // a new thread is where its creator is
        self.run(|| thread::Builder::new().name(name).spawn(work))?.map_err(Error::Enter)
    }

    /// A command whose process will be inside the namespace. The process is killed when the thread that starts it ends,
    /// so it cannot outlive this program.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Result<Command, Error> {
        let fd = self.fd.try_clone().map_err(Error::Enter)?;
        let mut command = Command::new(program);
        // SAFETY: between fork and exec only two system calls are made: nothing is allocated, no lock is taken. `fd` is
        // owned by the closure and closes at exec.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                enter(fd.as_fd())
            });
        }
        Ok(command)
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?)
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Makes this process root in a user namespace of its own, so that it may make network namespaces. Call it before the
/// first thread is started: the kernel refuses it to a process with several. Files still belong to the old user.
pub fn become_root_in_user_namespace() -> Result<(), Error> {
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    // SAFETY: only credentials change, of the one thread there is; memory and descriptors stay shared with nobody.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }.map_err(|error| Error::User(error.into()))?;
    for (file, content) in [
        ("/proc/self/setgroups", "deny".to_owned()), // user_namespaces(7): needed before gid_map
        ("/proc/self/uid_map", format!("0 {user} 1")),
        ("/proc/self/gid_map", format!("0 {group} 1")),
    ] {
        fs::write(file, content).map_err(Error::User)?;
    }
    Ok(())
}
