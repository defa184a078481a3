//! What one socket reads: frames, and runs of messages that need no second look.

use std::ops::Range;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::ask::Ask;
use crate::count::Count;
use crate::envelope::Envelope;
use crate::frames::{Found, Frame, next};
use crate::message::{Content, Message, scan_message};
use crate::panics::caught;
use crate::publish::Publish;
use crate::publishes::Publishes;
use crate::settle::{Acks, Settle};
use crate::settles::Settles;
use crate::tells::{Tell, Tells};
use crate::template::Template;

/// Runs to more targets than this in a row begin a new group.
const TARGETS_MAX: usize = 16;
/// Larger messages are rare, and copying them again would cost.
const RUN_BYTES_MAX: usize = 1 << 16;
/// Of messages that are not as the last ones, only some are worth learning.
const LEARNED_EVERY: u32 = 4;
/// Publishes to other topics than durable ones are many, too.
const DOUBTED: u32 = 32;
/// Storage beyond this is given back when nothing is in it.
const KEPT_BYTES: usize = 1 << 12;

/// A part of the input that is handed to Python.
enum Item {
    Tells(Tells),
    Ask(Ask),
    Publishes(Publishes),
    Settles(Settles),
    /// A whole text; it may be invalid UTF-8.
    Text(Range<usize>),
    Other(Frame),
    Violation(u16, &'static str),
}

/// The input of one socket.
#[pyclass(module = "signalhub_native")]
pub struct Reader {
    bytes: Vec<u8>,
    at: usize,
    frame_bytes_max: usize,
    run_bytes_max: usize,
    is_fragmented: bool,
    is_broken: bool,
    has_more: bool,
    template: Option<Template>,
    misses: u32,
    /// How many publishes are handed over as texts.
    doubted: u32,
    acks: Acks,
    /// The last sender and target, so that a socket makes few strings.
    names: [Option<Py<PyString>>; 2],
}

#[pymethods]
impl Reader {
    /// Larger messages are no part of a run; with 0 there are none.
    #[new]
    fn new(frame_bytes_max: usize, run_bytes_max: usize) -> PyResult<Self> {
        if frame_bytes_max > usize::MAX >> 2 {
            return Err(PyValueError::new_err("frame_bytes_max is too large"));
        }
        Ok(Self {
            bytes: Vec::new(),
            at: 0,
            frame_bytes_max,
            run_bytes_max: run_bytes_max.min(RUN_BYTES_MAX),
            is_fragmented: false,
            is_broken: false,
            has_more: false,
            template: None,
            misses: 0,
            doubted: 0,
            acks: Acks::default(),
            names: [None, None],
        })
    }

    /// A run of publishes was of no use: the next ones are handed over as texts.
    fn doubt(&mut self) {
        self.doubted = DOUBTED;
    }

    /// The memory it holds, 0 if that is no more than it keeps anyway.
    #[getter]
    fn held_bytes(&self) -> usize {
        let held = self.bytes.capacity();
        if held > KEPT_BYTES { held } else { 0 }
    }

    /// Take what was read; return (items, units, spared units, extra units, is there more?).
    ///
    /// The items are what up to `units` units hold: runs; whole texts as `bytes`; other frames as
    /// (opcode, is final, reserved bits, payload); a violation as (close code, reason), after which
    /// nothing is read. Each frame takes a unit, and large ones take extra units; of the messages
    /// of runs only one in `share` does, and the others are counted as spared.
    fn read<'py>(
        &mut self,
        py: Python<'py>,
        bytes: &[u8],
        units: isize,
        share: usize,
    ) -> PyResult<(Bound<'py, PyList>, usize, usize, usize, bool)> {
        caught(|| {
            if !self.is_broken {
                self.bytes.extend_from_slice(bytes);
            }
            let mut count = Count::new(units, share);
            let items = self.items(py, &mut count)?;
            let list = PyList::empty(py);
            for item in items {
                match item {
                    Item::Tells(tells) => list.append(Bound::new(py, tells)?)?,
                    Item::Ask(ask) => list.append(Bound::new(py, ask)?)?,
                    Item::Publishes(publishes) => list.append(Bound::new(py, publishes)?)?,
                    Item::Settles(settles) => list.append(Bound::new(py, settles)?)?,
                    Item::Text(range) => list.append(PyBytes::new(py, &self.bytes[range]))?,
                    Item::Other(frame) => list.append((
                        frame.opcode,
                        frame.is_final,
                        frame.rsv,
                        PyBytes::new(py, &self.bytes[frame.payload]),
                    ))?,
                    Item::Violation(code, reason) => list.append((code, reason))?,
                }
            }
            self.tidy();
            Ok((list, count.used(), count.spared(), count.extra, self.has_more))
        })
    }
}

impl Reader {
    fn items(&mut self, py: Python<'_>, count: &mut Count) -> PyResult<Vec<Item>> {
        let mut items = Vec::new();
        // Where the tells of one sender in a row begin; only these are sorted by target.
        let mut row = 0;
        self.has_more = false;
        while !self.is_broken {
            let frame = match next(&self.bytes, self.at, self.frame_bytes_max) {
                Found::Part(needed) => {
                    // Room for the whole frame at once.
                    let held = self.bytes.len() - self.at;
                    if needed > held && needed > KEPT_BYTES {
                        self.bytes.reserve(needed - held);
                    }
                    break;
                }
                Found::Violation(code, reason) => {
                    self.is_broken = true;
                    items.push(Item::Violation(code, reason));
                    break;
                }
                Found::Frame(frame) => frame,
            };
            if !count.take(frame.payload.len()) {
                self.has_more = true;
                break;
            }
            self.at = frame.payload.end;
            frame.unmask(&mut self.bytes);
            let is_message = frame.is_text() && !self.is_fragmented;
            if frame.is_data() {
                self.is_fragmented = !frame.is_final;
            }
            if !is_message {
                items.push(Item::Other(frame));
                row = items.len();
            } else if frame.payload.len() <= self.run_bytes_max
                && let Some(settle) = self.acks.again(&self.bytes[frame.payload.clone()])
            {
                count.spare();
                self.add_settle(py, &mut items, &frame.payload, settle)?;
                row = items.len();
            } else if let Some(message) = self.message(&frame.payload) {
                let Message { envelope, content } = &message;
                if !matches!(content, Content::Send(_)) || !envelope.is_ask {
                    count.spare();
                }
                match content {
                    Content::Send(send) if envelope.is_ask => {
                        let parts = Tell::of(envelope, send, &frame.payload);
                        items.push(match self.ask(py, &frame.payload, parts, envelope.ttl)? {
                            Some(ask) => Item::Ask(ask),
                            None => Item::Text(frame.payload),
                        });
                        row = items.len();
                    }
                    Content::Send(send) => {
                        let parts = Tell::of(envelope, send, &frame.payload);
                        self.add_tell(py, &mut items, &mut row, parts)?;
                    }
                    Content::Publish(publish) => {
                        self.add_publish(py, &mut items, &frame.payload, envelope, publish)?;
                        row = items.len();
                    }
                }
            } else if let Some(settle) = self.settle(&frame.payload) {
                count.spare();
                self.add_settle(py, &mut items, &frame.payload, settle)?;
                row = items.len();
            } else {
                items.push(Item::Text(frame.payload));
                row = items.len();
            }
        }
        Ok(items)
    }

    /// A message that needs no second look.
    fn message(&mut self, payload: &Range<usize>) -> Option<Message> {
        if payload.len() > self.run_bytes_max {
            return None;
        }
        let text = &self.bytes[payload.clone()];
        let known = self.template.as_ref().and_then(|template| template.read(text));
        let message = known.or_else(|| {
            let message = scan_message(text)?;
            if self.misses % LEARNED_EVERY == 0 {
                self.template = Template::new(text, &message);
            }
            self.misses = self.misses.wrapping_add(1);
            Some(message)
        })?;
        if self.doubted > 0 && matches!(message.content, Content::Publish(_)) {
            self.doubted -= 1;
            return None;
        }
        Some(message)
    }

    /// Add a tell to those of the same sender and target since `row`, or begin a new run.
    fn add_tell(
        &mut self,
        py: Python<'_>,
        items: &mut Vec<Item>,
        row: &mut usize,
        (sender, to, tell): (Range<usize>, Range<usize>, Tell),
    ) -> PyResult<()> {
        // What a socket sends to one target stays in order, whoever it says it is from.
        if let Some(Item::Tells(first)) = items.get(*row)
            && !first.is_from(py, &self.bytes[sender.clone()])?
        {
            *row = items.len();
        }
        for item in &mut items[*row..] {
            if let Item::Tells(tells) = item
                && tells.is_to(py, &self.bytes[to.clone()])?
            {
                tells.push(&self.bytes, tell);
                return Ok(());
            }
        }
        if items.len() - *row >= TARGETS_MAX {
            *row = items.len();
        }
        let [sender, to] = [self.name(py, 0, sender)?, self.name(py, 1, to)?];
        // Mostly one run takes all of the input.
        let rest = if items.len() == *row { self.bytes.len() - self.at } else { 0 };
        let size = tell.text.len() + rest.min(RUN_BYTES_MAX);
        let mut tells = Tells::new(sender, to, size);
        tells.push(&self.bytes, tell);
        items.push(Item::Tells(tells));
        Ok(())
    }

    /// An ask, which is a run by itself; `None` if Python has to read it.
    fn ask(
        &mut self,
        py: Python<'_>,
        payload: &Range<usize>,
        (sender, to, parts): (Range<usize>, Range<usize>, Tell),
        ttl: i64,
    ) -> PyResult<Option<Ask>> {
        let [sender, to] = [self.name(py, 0, sender)?, self.name(py, 1, to)?];
        let parts = parts.moved(payload.start, 0);
        Ok(Ask::new(sender, to, &self.bytes[payload.clone()], parts, ttl))
    }

    /// Add a publish to the run before it if that has the same sender and topic.
    fn add_publish(
        &mut self,
        py: Python<'_>,
        items: &mut Vec<Item>,
        payload: &Range<usize>,
        envelope: &Envelope,
        publish: &Publish,
    ) -> PyResult<()> {
        let at = |range: &Range<usize>| range.start + payload.start..range.end + payload.start;
        let (sender, topic) = (at(&envelope.sender), at(&publish.topic));
        let (from, to) = (&self.bytes[sender.clone()], &self.bytes[topic.clone()]);
        let is_more = match items.last() {
            Some(Item::Publishes(publishes)) => publishes.is_of(py, from, to)?,
            _ => false,
        };
        if !is_more {
            let [sender, topic] = [self.name(py, 0, sender)?, self.name(py, 1, topic)?];
            items.push(Item::Publishes(Publishes::new(sender, topic)));
        }
        if let Some(Item::Publishes(publishes)) = items.last_mut() {
            publishes.push(&self.bytes[payload.clone()], envelope, publish);
        }
        Ok(())
    }

    /// An acknowledgement that needs no second look.
    fn settle(&mut self, payload: &Range<usize>) -> Option<Settle> {
        let is_usual = payload.len() <= self.run_bytes_max;
        is_usual.then(|| self.acks.learn(&self.bytes[payload.clone()]))?
    }

    /// Add an acknowledgement to the run before it if that refers to the same.
    fn add_settle(
        &self,
        py: Python<'_>,
        items: &mut Vec<Item>,
        payload: &Range<usize>,
        settle: Settle,
    ) -> PyResult<()> {
        let Acks { subject, number, .. } = &self.acks;
        let text = &self.bytes[payload.clone()];
        if let Some(Item::Settles(settles)) = items.last_mut()
            && settles.is_of(*number)
        {
            settles.push(text, settle);
            return Ok(());
        }
        let mut settles = Settles::new(py, subject, *number)?;
        settles.push(text, settle);
        items.push(Item::Settles(settles));
        Ok(())
    }

    /// A name as a string, the same as last time if it has not changed.
    fn name(
        &mut self,
        py: Python<'_>,
        which: usize,
        range: Range<usize>,
    ) -> PyResult<Py<PyString>> {
        let name = &self.bytes[range];
        if let Some(last) = &self.names[which]
            && last.to_str(py)?.as_bytes() == name
        {
            return Ok(last.clone_ref(py));
        }
        let new = PyString::from_bytes(py, name)?.unbind();
        self.names[which] = Some(new.clone_ref(py));
        Ok(new)
    }

    /// Forget what was handed over, and keep little storage for what is left.
    fn tidy(&mut self) {
        if self.at == 0 {
            return;
        }
        let left = self.bytes.len() - self.at;
        if left <= KEPT_BYTES && self.bytes.capacity() > KEPT_BYTES {
            self.bytes = self.bytes[self.at..].to_vec();
        } else {
            self.bytes.drain(..self.at);
        }
        self.at = 0;
    }
}
