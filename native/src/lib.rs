//! The byte work of Signal Hub, for Python.
//!
//! Rules stay in Python: this turns bytes into runs of messages, and runs into bytes. Whatever it
//! does not fully understand is handed over as it came.

mod ask;
mod blake2b;
mod columns;
mod compose;
mod content;
mod count;
mod dedup;
mod envelope;
mod frames;
mod http;
mod joined;
mod json;
mod message;
mod msgpack;
mod page;
mod panics;
mod posts;
mod publish;
mod publishes;
mod reader;
mod record;
mod rooms;
mod settle;
mod settled;
mod settles;
mod sha1;
mod tells;
mod template;
mod unpack;
mod upgrade;

use pyo3::prelude::*;

/// The module.
#[pymodule]
mod signalhub_native {
    #[pymodule_export]
    use crate::ask::Ask;
    #[pymodule_export]
    use crate::columns::{entry_columns, entry_starts};
    #[pymodule_export]
    use crate::compose::first_copies;
    #[pymodule_export]
    use crate::content::Contents;
    #[pymodule_export]
    use crate::dedup::{DedupTable, fingerprint};
    #[pymodule_export]
    use crate::http::Requests;
    #[pymodule_export]
    use crate::joined::send_joined;
    #[pymodule_export]
    use crate::page::{listed, page_item, posted};
    #[pymodule_export]
    use crate::posts::RoomPosts;
    #[pymodule_export]
    use crate::publishes::{Bodies, Publishes};
    #[pymodule_export]
    use crate::reader::Reader;
    #[pymodule_export]
    use crate::record::Records;
    #[pymodule_export]
    use crate::rooms::RoomMessages;
    #[pymodule_export]
    use crate::settled::acked_body;
    #[pymodule_export]
    use crate::settles::Settles;
    #[pymodule_export]
    use crate::tells::Tells;
    #[pymodule_export]
    use crate::upgrade::upgrade;

    /// Python refuses a module of another version than its own.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
