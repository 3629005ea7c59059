//! Tests of the whole crate, over loopback where it serves.
#![allow(clippy::expect_used, reason = "a test's expectations")]

mod docs;
mod health;
mod lab;
mod logs;
mod metrics;
mod pages;
mod servers;
mod services;
