//! Not yet described.
