//! Tests of the whole crate, over loopback where it serves.

mod lab;
mod pages;
