//! Every file of `tests/scenarios` as a test of its own for each mode it holds in, through the real binary. Needs root.
//!
//! `KUBE_PROXY_TEST_NFT` names the nft programs, separated by colons, that have to be able to list the ruleset.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use testkit::objects::Source;
use testkit::scenario::{Setup, load, run};

/// The modes this program has.
const MODES: [&str; 1] = ["nftables"];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios");
    match trials(&folder) {
        Ok(trials) => libtest_mimic::run(&arguments, trials).exit_code(),
        Err(error) => {
            eprintln!("{}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

fn trials(folder: &Path) -> std::io::Result<Vec<Trial>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files.iter().flat_map(|path| trials_of(path)).collect())
}

fn trials_of(path: &Path) -> Vec<Trial> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let scenario = match load(path) {
        Ok(scenario) => scenario,
        Err(error) => return vec![Trial::test(name, move || Err(failure(&error)))],
    };
    let holds = |mode: &&str| scenario.modes.is_empty() || scenario.modes.iter().any(|named| named == mode);
    let modes = MODES.into_iter().filter(holds);
    modes.map(|mode| trial(format!("{name}::{mode}"), path.to_owned(), mode)).collect()
}

fn trial(name: String, path: PathBuf, mode: &str) -> Trial {
    let nft = std::env::var_os("KUBE_PROXY_TEST_NFT").unwrap_or_default();
    let setup = Setup {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_kube-proxy")),
        mode: mode.to_owned(),
        source: Source::Manifests,
        effect: Duration::from_secs(10),
        slow_refusal: false,
        nft: std::env::split_paths(&nft).filter(|path| !path.as_os_str().is_empty()).collect(),
    };
    Trial::test(name, move || run(&path, &setup).map_err(|error| failure(&error)))
}

fn failure(error: &dyn std::fmt::Display) -> Failed {
    Failed::from(format!("{error:#}"))
}
