//! The table of accepted ids: the same records in the same buckets as `_Table` in Python.

use std::collections::HashMap;

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::blake2b::blake2b;
use crate::publishes::KEY_BYTES;

const RECORD_BYTES: usize = 27;
const WORD: usize = KEY_BYTES;
const STREAM: usize = WORD + 8;
const SEQ: usize = STREAM + 4;
const SEQ_MAX: u64 = (1 << 40) - 1;
const DELAY_BITS: u32 = 20;
const KIND_BITS: u32 = 2;
const TIME_SHIFT: u32 = KIND_BITS + DELAY_BITS;
const DELAY_MASK: u64 = (1 << DELAY_BITS) - 1;
const DELAY_MS_MIN: i64 = -10_000;
const DELIVERED: u64 = 0;
const QUEUED: u64 = 1;
const ASIDE: u64 = 2;
const BUCKET_RECORDS_MEAN: usize = 16;
// As they are counted in Python, so that both forget the same.
const BUCKET_BYTES: i64 = 33 + 8 + 9;
const ASIDE_BYTES: i64 = 300;

type Key = [u8; KEY_BYTES];

/// An ack that does not fit a record, and its size.
struct Aside {
    ack: Py<PyAny>,
    bytes: i64,
}

/// Records by linear hashing, in each bucket in the order of time.
#[pyclass(module = "signalhub_native")]
pub struct DedupTable {
    aside: HashMap<Key, Aside>,
    buckets: Vec<Vec<u8>>,
    mask: usize,
    next_mask: usize,
    split: usize,
    cursor: usize,
    count: i64,
    memory_bytes: i64,
}

fn word_of(record: &[u8]) -> u64 {
    u64::from_le_bytes(record[WORD..STREAM].try_into().expect("eight bytes"))
}

fn key_of(key: &[u8]) -> PyResult<Key> {
    key.try_into().map_err(|_| PyValueError::new_err("a key has ten bytes"))
}

fn low_bits(key: &[u8]) -> usize {
    u32::from_le_bytes(key[..4].try_into().expect("four bytes")) as usize
}

fn time_word(at_ms: i64) -> PyResult<u64> {
    let at_ms = u64::try_from(at_ms)?;
    if at_ms >> (64 - TIME_SHIFT) != 0 {
        return Err(PyOverflowError::new_err("no record has room for this time"));
    }
    Ok(at_ms << TIME_SHIFT)
}

/// The word that records of this time or later reach; Python's may be negative.
fn oldest_word(oldest_kept_ms: i64) -> PyResult<u64> {
    time_word(oldest_kept_ms.max(0))
}

fn record(key: &Key, word: u64, stream: u32, seq: u64) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..WORD].copy_from_slice(key);
    record[WORD..STREAM].copy_from_slice(&word.to_le_bytes());
    record[STREAM..SEQ].copy_from_slice(&stream.to_le_bytes());
    record[SEQ..].copy_from_slice(&seq.to_le_bytes()[..RECORD_BYTES - SEQ]);
    record
}

impl DedupTable {
    fn begin(&mut self) {
        self.count = 0;
        self.memory_bytes = BUCKET_BYTES;
        self.cursor = 0;
        self.buckets = vec![Vec::new()];
        self.mask = 0;
        self.next_mask = 1;
        self.split = 0;
    }

    fn index(&self, key: &[u8]) -> usize {
        let bits = low_bits(key);
        let index = bits & self.mask;
        if index >= self.split { index } else { bits & self.next_mask }
    }

    fn newest(&self, key: &[u8]) -> Option<&[u8]> {
        let bucket = &self.buckets[self.index(key)];
        bucket.rchunks_exact(RECORD_BYTES).find(|record| record.starts_with(key))
    }

    fn trim_bucket(&mut self, index: usize, oldest_word: u64) {
        let bucket = &self.buckets[index];
        let records = bucket.chunks_exact(RECORD_BYTES);
        let old = records.take_while(|record| word_of(record) < oldest_word).count();
        if old == 0 {
            return;
        }
        let kept = bucket[old * RECORD_BYTES..].to_vec();
        let gone = std::mem::replace(&mut self.buckets[index], kept);
        for record in gone[..old * RECORD_BYTES].chunks_exact(RECORD_BYTES) {
            if word_of(record) & 3 == ASIDE {
                self.take_back(record[..WORD].try_into().expect("a key"));
            }
        }
        self.count -= old as i64;
        self.memory_bytes -= (old * RECORD_BYTES) as i64;
    }

    fn take_back(&mut self, key: Key) {
        if let Some(gone) = self.aside.remove(&key) {
            self.memory_bytes -= ASIDE_BYTES + gone.bytes;
        }
    }

    fn push(&mut self, record: &[u8; RECORD_BYTES], oldest_word: u64) {
        let index = self.index(record);
        self.trim_bucket(index, oldest_word);
        let bucket = &mut self.buckets[index];
        bucket.reserve_exact(RECORD_BYTES);
        bucket.extend_from_slice(record);
        self.count += 1;
        self.memory_bytes += RECORD_BYTES as i64;
        if self.count > (self.buckets.len() * BUCKET_RECORDS_MEAN) as i64 {
            self.split_one();
        }
    }

    fn split_one(&mut self) {
        let bucket = std::mem::take(&mut self.buckets[self.split]);
        let bit = self.mask + 1;
        let records = || bucket.chunks_exact(RECORD_BYTES);
        let part = |is_moving: bool| {
            let chosen = records().filter(|record| (low_bits(record) & bit != 0) == is_moving);
            chosen.flatten().copied().collect::<Vec<u8>>().into_boxed_slice().into_vec()
        };
        self.buckets[self.split] = part(false);
        self.buckets.push(part(true));
        self.memory_bytes += BUCKET_BYTES;
        self.split += 1;
        if self.split > self.mask {
            (self.mask, self.next_mask) = (self.next_mask, self.next_mask << 1 | 1);
            self.split = 0;
        }
    }
}

/// The key of a message; lone surrogates count as Python encodes them.
#[pyfunction]
pub fn fingerprint<'py>(
    sender: &Bound<'py, PyString>,
    message_id: &Bound<'py, PyString>,
) -> PyResult<Bound<'py, PyBytes>> {
    let head = format!("{} ", sender.len()?);
    let key = match (sender.to_str(), message_id.to_str()) {
        (Ok(sender), Ok(id)) => {
            blake2b::<KEY_BYTES>(&[head.as_bytes(), sender.as_bytes(), id.as_bytes()])
        }
        _ => {
            let encoded = |text: &Bound<'py, PyString>| {
                let bytes = text.call_method1("encode", ("utf-8", "surrogatepass"))?;
                Ok::<_, PyErr>(bytes.cast_into::<PyBytes>()?)
            };
            let (sender, id) = (encoded(sender)?, encoded(message_id)?);
            blake2b::<KEY_BYTES>(&[head.as_bytes(), sender.as_bytes(), id.as_bytes()])
        }
    };
    Ok(PyBytes::new(sender.py(), &key))
}

#[pymethods]
impl DedupTable {
    #[new]
    fn new() -> Self {
        let mut table = Self {
            aside: HashMap::new(),
            buckets: Vec::new(),
            mask: 0,
            next_mask: 0,
            split: 0,
            cursor: 0,
            count: 0,
            memory_bytes: 0,
        };
        table.begin();
        table
    }

    #[getter]
    fn count(&self) -> i64 {
        self.count
    }

    #[getter]
    fn memory_bytes(&self) -> i64 {
        self.memory_bytes
    }

    /// When it was accepted; its ack, or the delay until the ack, its status and position.
    fn find<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Option<Bound<'py, PyAny>>> {
        let key = key_of(key)?;
        let Some(record) = self.newest(&key) else { return Ok(None) };
        let word = word_of(record);
        let at_ms = word >> TIME_SHIFT;
        if word & 3 == ASIDE {
            let Some(aside) = self.aside.get(&key) else { return Ok(None) };
            return Ok(Some((at_ms, aside.ack.clone_ref(py)).into_pyobject(py)?.into_any()));
        }
        let delay_ms = (word >> KIND_BITS & DELAY_MASK) as i64 + DELAY_MS_MIN;
        let status = if word & 3 == QUEUED { "queued" } else { "delivered" };
        let stream = u32::from_le_bytes(record[STREAM..SEQ].try_into().expect("four bytes"));
        let mut digits = [0; 8];
        digits[..RECORD_BYTES - SEQ].copy_from_slice(&record[SEQ..]);
        let known = (delay_ms, status, u64::from_le_bytes(digits), stream);
        Ok(Some((at_ms, known).into_pyobject(py)?.into_any()))
    }

    /// Does it hold one of these keys, accepted then or later?
    fn knows_any(&self, keys: &Bound<'_, PyList>, oldest_kept_ms: i64) -> PyResult<bool> {
        for key in keys {
            let key = key_of(key.cast::<PyBytes>()?.as_bytes())?;
            let Some(record) = self.newest(&key) else { continue };
            let is_kept = (word_of(record) >> TIME_SHIFT) as i64 >= oldest_kept_ms;
            if is_kept && (word_of(record) & 3 != ASIDE || self.aside.contains_key(&key)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Does its ack not fit a record?
    fn is_aside(&self, key: &[u8]) -> PyResult<bool> {
        Ok(self.aside.contains_key(&key_of(key)?))
    }

    /// Fill an empty table with records, oldest first, all at once.
    fn load(&mut self, py: Python<'_>, kept: &Bound<'_, PyList>) -> PyResult<()> {
        let mut pieces = Vec::new();
        for one in kept {
            pieces.push(one.getattr(intern!(py, "records"))?.cast_into::<PyBytes>()?);
            let aside = one.getattr(intern!(py, "aside"))?.cast_into::<PyDict>()?;
            for (key, ack) in aside {
                let extra = ack.getattr(intern!(py, "extra"))?;
                let bytes = extra.cast::<PyBytes>()?.as_bytes().len() as i64;
                let key = key_of(key.cast::<PyBytes>()?.as_bytes())?;
                self.aside.insert(key, Aside { ack: ack.unbind(), bytes });
            }
        }
        let all = pieces.iter().map(|piece| piece.as_bytes().len()).sum::<usize>();
        let count = all / RECORD_BYTES;
        while self.buckets.len() * BUCKET_RECORDS_MEAN < count {
            self.buckets.resize(self.buckets.len() * 2, Vec::new());
            (self.mask, self.next_mask) = (self.next_mask, self.next_mask << 1 | 1);
        }
        for piece in &pieces {
            for record in piece.as_bytes().chunks_exact(RECORD_BYTES) {
                self.buckets[low_bits(record) & self.mask].extend_from_slice(record);
            }
        }
        self.buckets.iter_mut().for_each(Vec::shrink_to_fit);
        self.count = count as i64;
        let aside = self.aside.values().map(|one| ASIDE_BYTES + one.bytes).sum::<i64>();
        let buckets = self.buckets.len() as i64 * BUCKET_BYTES;
        self.memory_bytes = (count * RECORD_BYTES) as i64 + buckets + aside;
        Ok(())
    }

    /// The record that was added.
    fn add<'py>(
        &mut self,
        py: Python<'py>,
        key: &[u8],
        at_ms: i64,
        ack: Bound<'py, PyAny>,
        delay_ms: i64,
        oldest_kept_ms: i64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (key, time, oldest) = (key_of(key)?, time_word(at_ms)?, oldest_word(oldest_kept_ms)?);
        let extra = ack.getattr(intern!(py, "extra"))?;
        let extra = extra.cast::<PyBytes>()?.as_bytes().len() as i64;
        let seq: u64 = ack.getattr(intern!(py, "seq"))?.extract()?;
        let stream: u64 = ack.getattr(intern!(py, "stream"))?.extract()?;
        let delay = delay_ms - DELAY_MS_MIN;
        let is_large = extra > 0 || seq > SEQ_MAX || stream > u64::from(u32::MAX);
        let new = if is_large || !(0..=DELAY_MASK as i64).contains(&delay) {
            // Trimming may remove an older one of this key, so it comes first, as in Python.
            self.trim_bucket(self.index(&key), oldest);
            self.take_back(key);
            self.aside.insert(key, Aside { ack: ack.unbind(), bytes: extra });
            self.memory_bytes += ASIDE_BYTES + extra;
            record(&key, time | ASIDE, 0, 0)
        } else {
            let status = ack.getattr(intern!(py, "status"))?;
            let kind = if status.extract::<&str>()? == "queued" { QUEUED } else { DELIVERED };
            record(&key, time | (delay as u64) << KIND_BITS | kind, stream as u32, seq)
        };
        self.push(&new, oldest);
        Ok(PyBytes::new(py, &new))
    }

    /// Add consecutive messages of a stream that are queued; return their records.
    fn add_queued<'py>(
        &mut self,
        keys: &Bound<'py, PyList>,
        at_ms: i64,
        delay_ms: i64,
        stream: u32,
        first_seq: u64,
        oldest_kept_ms: i64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (time, oldest) = (time_word(at_ms)?, oldest_word(oldest_kept_ms)?);
        let delay = delay_ms - DELAY_MS_MIN;
        if !(0..=DELAY_MASK as i64).contains(&delay) || first_seq + keys.len() as u64 > SEQ_MAX {
            return Err(PyOverflowError::new_err("no record has room for it"));
        }
        let word = time | (delay as u64) << KIND_BITS | QUEUED;
        let mut records = Vec::with_capacity(RECORD_BYTES * keys.len());
        for (seq, key) in (first_seq..).zip(keys) {
            let new = record(&key_of(key.cast::<PyBytes>()?.as_bytes())?, word, stream, seq);
            self.push(&new, oldest);
            records.extend_from_slice(&new);
        }
        Ok(PyBytes::new(keys.py(), &records))
    }

    /// Add messages that are delivered, each with its stream and position; return their records.
    fn add_delivered<'py>(
        &mut self,
        keys: &Bound<'py, PyList>,
        at_ms: i64,
        delay_ms: i64,
        streams: Vec<u32>,
        seqs: Vec<u64>,
        oldest_kept_ms: i64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (time, oldest) = (time_word(at_ms)?, oldest_word(oldest_kept_ms)?);
        let delay = delay_ms - DELAY_MS_MIN;
        if !(0..=DELAY_MASK as i64).contains(&delay) || seqs.iter().any(|seq| *seq > SEQ_MAX) {
            return Err(PyOverflowError::new_err("no record has room for it"));
        }
        if keys.len() != streams.len() || keys.len() != seqs.len() {
            return Err(PyValueError::new_err("the columns differ in length"));
        }
        let word = time | (delay as u64) << KIND_BITS | DELIVERED;
        let mut records = Vec::with_capacity(RECORD_BYTES * keys.len());
        for ((key, stream), seq) in keys.iter().zip(streams).zip(seqs) {
            let new = record(&key_of(key.cast::<PyBytes>()?.as_bytes())?, word, stream, seq);
            self.push(&new, oldest);
            records.extend_from_slice(&new);
        }
        Ok(PyBytes::new(keys.py(), &records))
    }

    /// Cut older records from the next few buckets, going round and round.
    fn trim(&mut self, buckets: usize, oldest_kept_ms: i64) -> PyResult<()> {
        let oldest = oldest_word(oldest_kept_ms)?;
        for _ in 0..buckets.min(self.buckets.len()) {
            self.cursor = (self.cursor + 1) % self.buckets.len();
            self.trim_bucket(self.cursor, oldest);
        }
        if self.count == 0 {
            self.begin();
        }
        Ok(())
    }
}
