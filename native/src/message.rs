//! Messages of all types that may be part of a run.

use std::ops::Range;

use crate::envelope::{Envelope, Send, scan, scan_send};
use crate::publish::{Publish, scan_publish};

/// A message whose type may be part of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub envelope: Envelope,
    pub content: Content,
}

/// What its payload says.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    Send(Send),
    Publish(Publish),
}

impl Content {
    /// Empty if there is none.
    pub fn data(&self) -> &Range<usize> {
        match self {
            Self::Send(send) => &send.data,
            Self::Publish(publish) => &publish.data,
        }
    }

    /// The same.
    pub fn data_mut(&mut self) -> &mut Range<usize> {
        match self {
            Self::Send(send) => &mut send.data,
            Self::Publish(publish) => &mut publish.data,
        }
    }

    /// What orders messages, if they have it.
    pub fn key_mut(&mut self) -> Option<&mut Range<usize>> {
        match self {
            Self::Send(_) => None,
            Self::Publish(publish) => publish.key.as_mut(),
        }
    }

    /// All other members.
    pub fn names_mut(&mut self) -> [&mut Range<usize>; 2] {
        match self {
            Self::Send(send) => [&mut send.kind, &mut send.to],
            Self::Publish(publish) => [&mut publish.kind, &mut publish.topic],
        }
    }
}

/// Read a tell, an ask or a publish; `None` if it is something else, or Python has to.
pub fn scan_message(text: &[u8]) -> Option<Message> {
    let envelope = scan(text)?;
    let content = match &text[envelope.kind.clone()] {
        b"hub:send" => Content::Send(scan_send(text, envelope.payload.clone())?),
        b"hub:publish" => Content::Publish(scan_publish(text, envelope.payload.clone())?),
        _ => return None,
    };
    Some(Message { envelope, content })
}
