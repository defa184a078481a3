//! What is read at once: a unit for each frame, and more for large ones.

/// A frame counts once for each of these bytes.
const UNIT_BYTES: usize = 2048;
/// The most messages of a run that take one unit together.
const SHARE_MAX: usize = 64;

/// How much of a grant was used.
pub struct Count {
    /// What is left of it, in parts of a unit.
    left: isize,
    /// Parts in a unit.
    share: usize,
    parts: usize,
    /// One for each frame, and the extra ones.
    units: usize,
    /// Those that large frames took besides their first.
    pub extra: usize,
}

impl Count {
    /// Begin with a grant.
    pub fn new(units: isize, share: usize) -> Self {
        let share = share.clamp(1, SHARE_MAX);
        let left = units.saturating_mul(share as isize);
        Self { left, share, parts: 0, units: 0, extra: 0 }
    }

    /// Count a frame, if the grant has room for it.
    pub fn take(&mut self, size: usize) -> bool {
        let extra = size.saturating_sub(1) / UNIT_BYTES;
        // The first frame of a call needs one unit only, or a large one would never be read.
        let needed = if self.units == 0 { self.share } else { (1 + extra) * self.share };
        if self.left < needed as isize {
            return false;
        }
        self.parts += (1 + extra) * self.share;
        self.left -= ((1 + extra) * self.share) as isize;
        self.units += 1 + extra;
        self.extra += extra;
        true
    }

    /// The frame that was counted last is part of a run.
    pub fn spare(&mut self) {
        self.parts -= self.share - 1;
        self.left += (self.share - 1) as isize;
    }

    /// Units of the grant.
    pub fn used(&self) -> usize {
        self.parts.div_ceil(self.share)
    }

    /// Units that were counted and leave the grant to others.
    pub fn spared(&self) -> usize {
        self.units - self.used()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_runs_share_a_unit() {
        let mut count = Count::new(2, 4);
        for _ in 0..5 {
            assert!(count.take(100));
            count.spare();
        }
        assert!(!count.take(100), "a message that is not part of a run needs a whole unit");
        assert_eq!((count.used(), count.spared(), count.extra), (2, 3, 0));
    }

    #[test]
    fn the_first_frame_may_be_larger_than_the_grant() {
        let mut count = Count::new(1, 1);
        assert!(count.take(3 * UNIT_BYTES));
        assert!(!count.take(1));
        assert_eq!((count.used(), count.spared(), count.extra), (3, 0, 2));
        assert!(!Count::new(0, 4).take(1));
    }
}
