//! Entries of the log as Arrow columns; the layout is that of `log/record.py`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::panics::caught;
use crate::unpack::Unpacker;

const BATCH_HEAD_BYTES: usize = 48;
/// With the salt.
const ENTRY_HEAD_BYTES: usize = 44;
const LENGTH_BYTES: usize = 4;
const ERASED: u8 = 1;
/// The end of the year 9999, in milliseconds; later means never.
const TIME_MAX_MS: f64 = 253_402_300_799_000.0;
const MICROSECONDS: i64 = 1_000;

/// Which members of the bodies of a kind are columns.
mod layout {
    pub const NONE: u8 = 1;
    pub const MESSAGE: u8 = 2;
    pub const ROOM_MESSAGE: u8 = 3;
    pub const BROADCAST: u8 = 4;
}

/// Id and expiry of a body, both `None` in one that has neither; `None` if Python must look.
fn look_inside(layout: u8, body: &[u8]) -> Option<(Option<&str>, Option<f64>)> {
    let (required, expiry) = match layout {
        layout::NONE => return Some((None, None)),
        layout::MESSAGE => (5, 7),
        layout::ROOM_MESSAGE => (4, 3),
        layout::BROADCAST => (3, 3),
        _ => return None,
    };
    let mut body = Unpacker::new(body);
    let members = body.array()?;
    if members < required {
        return None;
    }
    let id = body.text()?;
    let mut expires_ms = None;
    let mut done = 1;
    if members > expiry {
        body.skip(expiry - done)?;
        if layout == layout::ROOM_MESSAGE || !body.null() {
            expires_ms = Some(body.number()?);
        }
        if layout == layout::BROADCAST && expires_ms.is_some() {
            return None;
        }
        done = expiry + 1;
    }
    body.skip(members - done)?;
    body.is_empty().then_some((Some(id), expires_ms))
}

/// A bit for each row.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    rows: usize,
    set: usize,
}

impl Bits {
    fn push(&mut self, bit: bool) {
        if self.rows / 8 == self.bytes.len() {
            self.bytes.push(0);
        }
        if bit && let Some(last) = self.bytes.last_mut() {
            *last |= 1 << (self.rows % 8);
            self.set += 1;
        }
        self.rows += 1;
    }

    /// As validity; `None` if all rows are valid.
    fn validity<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        (self.set < self.rows).then(|| PyBytes::new(py, &self.bytes))
    }
}

/// A column of texts or bytes.
struct Texts {
    offsets: Vec<u8>,
    data: Vec<u8>,
    valid: Bits,
}

impl Texts {
    fn new(rows: usize, bytes: usize) -> Self {
        let mut offsets = Vec::with_capacity(4 * (rows + 1));
        offsets.extend_from_slice(&0i32.to_le_bytes());
        Self { offsets, data: Vec::with_capacity(bytes), valid: Bits::default() }
    }

    fn push(&mut self, value: Option<&[u8]>) -> Option<()> {
        self.data.extend_from_slice(value.unwrap_or_default());
        self.offsets.extend_from_slice(&i32::try_from(self.data.len()).ok()?.to_le_bytes());
        self.valid.push(value.is_some());
        Some(())
    }

    fn buffers<'py>(&self, py: Python<'py>) -> Buffers<'py> {
        let given = [&self.offsets, &self.data].map(|one| Some(PyBytes::new(py, one)));
        [self.valid.validity(py)].into_iter().chain(given).collect()
    }
}

/// A column of numbers of eight bytes.
#[derive(Default)]
struct Numbers {
    data: Vec<u8>,
    valid: Bits,
}

impl Numbers {
    fn push(&mut self, value: Option<i64>) {
        self.data.extend_from_slice(&value.unwrap_or_default().to_le_bytes());
        self.valid.push(value.is_some());
    }

    fn buffers<'py>(&self, py: Python<'py>) -> Buffers<'py> {
        vec![self.valid.validity(py), Some(PyBytes::new(py, &self.data))]
    }
}

/// The buffers of one column, as Arrow wants them.
type Buffers<'py> = Vec<Option<Bound<'py, PyBytes>>>;

struct Columns {
    kinds: Vec<u8>,
    streams: Texts,
    stream_epochs: Numbers,
    seqs: Numbers,
    ids: Texts,
    accepted: Numbers,
    expires: Numbers,
    bodies: Texts,
    erased: Bits,
}

impl Columns {
    fn new(rows: usize, bytes: usize) -> Self {
        Self {
            kinds: Vec::with_capacity(rows),
            streams: Texts::new(rows, 16 * rows),
            stream_epochs: Numbers::default(),
            seqs: Numbers::default(),
            ids: Texts::new(rows, 32 * rows),
            accepted: Numbers::default(),
            expires: Numbers::default(),
            bodies: Texts::new(rows, bytes),
            erased: Bits::default(),
        }
    }

    fn push(&mut self, entry: &[u8], layouts: &[u8]) -> Option<()> {
        let (head, rest) = entry.split_first_chunk::<ENTRY_HEAD_BYTES>()?;
        let [_, _, _, _, kind, flags, ..] = *head;
        let stream_bytes = u16::from_le_bytes([head[6], head[7]]) as usize;
        let (stream, body) = rest.split_at_checked(stream_bytes)?;
        let stream_epoch = u32::from_le_bytes(head[8..12].try_into().ok()?);
        let seq = u64::from_le_bytes(head[12..20].try_into().ok()?);
        let at_ms = u64::from_le_bytes(head[20..28].try_into().ok()?);
        let is_erased = flags & ERASED != 0;
        let (id, expires_ms) =
            if is_erased { (None, None) } else { look_inside(*layouts.get(kind as usize)?, body)? };
        self.kinds.push(kind);
        self.streams.push(Some(std::str::from_utf8(stream).ok()?.as_bytes()))?;
        self.stream_epochs.push(Some(stream_epoch as i64));
        self.seqs.push(Some(seq as i64));
        self.ids.push(id.map(str::as_bytes))?;
        self.accepted.push(Some((at_ms as i64).wrapping_mul(MICROSECONDS)));
        let is_time = |ms: &f64| (0.0..TIME_MAX_MS).contains(ms);
        self.expires.push(expires_ms.filter(is_time).map(|ms| ms as i64 * MICROSECONDS));
        self.bodies.push((!is_erased).then_some(body))?;
        self.erased.push(is_erased);
        Some(())
    }

    fn buffers<'py>(&self, py: Python<'py>) -> Vec<Buffers<'py>> {
        let plain = |data| vec![None, Some(PyBytes::new(py, data))];
        vec![
            plain(&self.kinds),
            self.streams.buffers(py),
            self.stream_epochs.buffers(py),
            self.seqs.buffers(py),
            self.ids.buffers(py),
            self.accepted.buffers(py),
            self.expires.buffers(py),
            self.bodies.buffers(py),
            plain(&self.erased.bytes),
        ]
    }
}

/// The bytes from an entry's start to its end.
fn entry_at(data: &[u8], start: usize) -> Option<&[u8]> {
    let rest = data.get(start..)?;
    let length = u32::from_le_bytes(*rest.first_chunk()?) as usize;
    rest.get(..LENGTH_BYTES + length)
}

fn starts_of(data: &[u8], batches: &[(usize, usize, usize)]) -> Option<Vec<u8>> {
    let count = batches.iter().map(|&(_, _, count)| count).sum::<usize>();
    // Every entry has a head, so this is bounded by the data.
    let mut starts = Vec::with_capacity(8 * count.min(data.len() / ENTRY_HEAD_BYTES + 1));
    for &(position, length, count) in batches {
        let batch = data.get(..position.checked_add(length)?)?;
        let mut at = position + BATCH_HEAD_BYTES;
        for _ in 0..count {
            starts.extend_from_slice(&i64::try_from(at).ok()?.to_le_bytes());
            let entry = entry_at(batch, at)?;
            if entry.len() < ENTRY_HEAD_BYTES {
                return None;
            }
            at += entry.len();
        }
        if at != batch.len() {
            return None;
        }
    }
    Some(starts)
}

fn columns_of(data: &[u8], starts: &[u8], layouts: &[u8]) -> Option<Columns> {
    let starts = starts
        .chunks_exact(8)
        .map(|start| usize::try_from(i64::from_le_bytes(start.try_into().ok()?)).ok())
        .collect::<Option<Vec<_>>>()?;
    let bytes = match (starts.first(), starts.last()) {
        (Some(first), Some(last)) => last.saturating_sub(*first).min(data.len()),
        _ => 0,
    };
    let mut columns = Columns::new(starts.len(), bytes);
    for start in starts {
        columns.push(entry_at(data, start)?, layouts)?;
    }
    Some(columns)
}

/// Where the entries of verified batches start, as 64-bit numbers. A batch is its position, its
/// length and its count. `None` if the entries do not fill their batches.
#[pyfunction]
pub fn entry_starts<'py>(
    py: Python<'py>,
    data: &[u8],
    batches: Vec<(usize, usize, usize)>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    caught(|| Ok(starts_of(data, &batches).map(|starts| PyBytes::new(py, &starts))))
}

/// The columns of the entries that start at `starts`, each as its Arrow buffers: kind, stream,
/// epoch of the stream, seq, id, accepted at, expires at, body, is erased. `layouts` says for every
/// kind what its bodies are. `None` if Python has to look at an entry.
#[pyfunction]
pub fn entry_columns<'py>(
    py: Python<'py>,
    data: &[u8],
    starts: &[u8],
    layouts: &[u8],
) -> PyResult<Option<Vec<Buffers<'py>>>> {
    caught(|| Ok(columns_of(data, starts, layouts).map(|columns| columns.buffers(py))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_and_expiry_are_where_the_layout_says() {
        let message = [0x98, 0xa1, 65, 0xc4, 0, 0xa0, 0xa0, 0xc4, 0, 0xc4, 0, 0xc0, 0xcc, 200];
        assert_eq!(look_inside(layout::MESSAGE, &message), Some((Some("A"), Some(200.0))));
        let short = [0x95, 0xa1, 65, 0xc4, 0, 0xa0, 0xa0, 0xc4, 0];
        assert_eq!(look_inside(layout::MESSAGE, &short), Some((Some("A"), None)));
        let said = [0x94, 0xa1, 65, 0xc4, 0, 0xc0, 7];
        assert_eq!(look_inside(layout::ROOM_MESSAGE, &said), Some((Some("A"), Some(7.0))));
        let told = [0x94, 0xa1, 65, 0xa0, 0xc4, 0, 0xc0];
        assert_eq!(look_inside(layout::BROADCAST, &told), Some((Some("A"), None)));
        assert_eq!(look_inside(layout::NONE, &[0xc1]), Some((None, None)));
    }

    #[test]
    fn bodies_that_python_would_refuse_are_left_to_it() {
        let endless = [0x94, 0xa1, 65, 0xc4, 0, 0xc0, 0xc0];
        assert_eq!(look_inside(layout::ROOM_MESSAGE, &endless), None);
        let dated = [0x94, 0xa1, 65, 0xa0, 0xc4, 0, 7];
        assert_eq!(look_inside(layout::BROADCAST, &dated), None);
        assert_eq!(look_inside(layout::BROADCAST, &[0x92, 0xa1, 65, 0xa0]), None);
        assert_eq!(look_inside(layout::BROADCAST, &[0x93, 0xa1, 65, 0xa0, 0xc4, 0, 0]), None);
        assert_eq!(look_inside(0, &[0x90]), None);
    }

    #[test]
    fn entries_that_do_not_fill_their_batch_are_left_to_python() {
        let mut batch = vec![0; BATCH_HEAD_BYTES];
        let entry = [&40u32.to_le_bytes()[..], &[0; 40]].concat();
        batch.extend_from_slice(&entry);
        batch.extend_from_slice(&entry);
        let length = batch.len();
        let found = starts_of(&batch, &[(0, length, 2)]).map(|starts| starts.len());
        assert_eq!(found, Some(16));
        assert_eq!(starts_of(&batch, &[(0, length, 1)]), None);
        assert_eq!(starts_of(&batch, &[(0, length, 3)]), None);
        assert_eq!(starts_of(&batch, &[(0, length + 1, 2)]), None);
        assert_eq!(starts_of(&batch, &[(0, length, usize::MAX)]), None);
        batch[BATCH_HEAD_BYTES] = 30;
        assert_eq!(starts_of(&batch, &[(0, length, 2)]), None);
    }

    #[test]
    fn validity_is_left_out_when_every_row_is_valid() {
        let mut bits = Bits::default();
        for row in 0..9 {
            bits.push(row != 8);
        }
        assert_eq!((bits.bytes, bits.set, bits.rows), (vec![0xff, 0], 8, 9));
    }
}
