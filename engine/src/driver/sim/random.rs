//! Pseudo-random numbers that mean the same for ever.

use crate::units::{index, wide};

/// A small generator (xorshift64*), so that a seed replays a run on every machine and version.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds must not begin alike: the bits are spread over the word first.
        let mut word = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self((word ^ (word >> 31)) | 1)
    }

    /// A generator of its own for a part of the world, so that what one part draws does not shift
    /// what another one sees.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.number())
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        index((self.number() >> 11) % wide(bound.max(1)))
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True once in `n` times; never when `n` is 0.
    pub fn one_in(&mut self, n: usize) -> bool {
        n > 0 && self.below(n) == 0
    }

    /// One of the choices, or the default of their type when there is none.
    pub fn pick<T: Copy + Default>(&mut self, choices: &[T]) -> T {
        choices.get(self.below(choices.len())).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_for_ever() {
        let mut random = Random::new(1);
        assert_eq!(random.number(), Random::new(1).number());
        assert_ne!(Random::new(1).number(), Random::new(2).number());
        let drawn: Vec<_> = (0..1000).map(|_| random.between(3, 5)).collect();
        assert!((3..=5).all(|n| drawn.contains(&n)));
        assert!(drawn.iter().all(|n| (3..=5).contains(n)));
        assert!(!random.one_in(0));
    }
}
