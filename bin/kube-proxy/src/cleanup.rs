//! `--cleanup`: removes what a proxy left in the kernel.

use anyhow::{Result, bail};
use model::Family;
use tracing::{error, info};

/// Removes the nftables tables of both families; goes on after a failure and reports them all.
pub(crate) fn run() -> Result<()> {
    let mut failures = 0;
    for family in [Family::V4, Family::V6] {
        match backend_nftables::cleanup(family) {
            Ok(true) => info!(%family, "Removed the nftables table"),
            Ok(false) => info!(%family, "There was no nftables table"),
            Err(failure) => {
                error!(%family, error = %failure, "Cleaning up failed");
                failures += 1;
            }
        }
    }
    if failures > 0 {
        bail!("{failures} of the clean-up steps failed; what could be removed is gone");
    }
    Ok(())
}
