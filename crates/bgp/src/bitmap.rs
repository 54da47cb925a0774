//! A set of small integers, stored as one bit each.

#[derive(Clone, Debug, Default)]
pub struct Bitmap {
    words: Vec<u64>,
}

impl Bitmap {
    /// Inserts the number. Returns whether it was absent before.
    pub fn insert(&mut self, number: u32) -> bool {
        let at = number as usize / 64;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        let Some(word) = self.words.get_mut(at) else { return false };
        let new = *word & bit(number) == 0;
        *word |= bit(number);
        new
    }

    /// Removes the number. Returns whether it was present.
    pub fn remove(&mut self, number: u32) -> bool {
        let Some(word) = self.words.get_mut(number as usize / 64) else { return false };
        let there = *word & bit(number) != 0;
        *word &= !bit(number);
        there
    }
}

fn bit(number: u32) -> u64 {
    1 << (number % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_as_a_set() {
        let mut bitmap = Bitmap::default();
        assert!(!bitmap.remove(0) && !bitmap.remove(1000));
        for number in [0, 63, 64, 1000] {
            assert!(bitmap.insert(number) && !bitmap.insert(number));
        }
        assert!(!bitmap.remove(1) && !bitmap.remove(65));
        assert!(bitmap.remove(63) && !bitmap.remove(63) && bitmap.remove(64) && bitmap.remove(1000));
    }
}
