//! Numbers for names. A number is a hash of its name, so that the next process finds the same numbers in the kernel.

use std::collections::HashMap;

/// The numbers in use. Never 0; of 31 bits, as packet marks with the top bit set would not be told apart from the
/// refusing sizes of lists in a listing.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    taken: HashMap<u32, u64>,
}

const MASK: u32 = 0x7fff_ffff;

/// FNV-1a (draft-eastlake-fnv), 64 bits.
fn hash(name: &[u8]) -> u64 {
    name.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Ids {
    /// A number for a name that has none yet; the next free one when two names meet.
    pub(crate) fn take(&mut self, name: &[u8]) -> u32 {
        let hash = hash(name);
        #[allow(clippy::cast_possible_truncation)] // folded
        let mut id = ((hash ^ (hash >> 32)) as u32 & MASK).max(1);
        while self.taken.get(&id).is_some_and(|other| *other != hash) {
            id = (id % MASK) + 1;
        }
        self.taken.insert(id, hash);
        id
    }

    /// Gives a number back.
    pub(crate) fn release(&mut self, id: u32) {
        self.taken.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_same_number_in_every_process() {
        assert_eq!(
            Ids::default().take(b"web/shop:http/tcp cluster"),
            Ids::default().take(b"web/shop:http/tcp cluster")
        );
    }

    #[test]
    fn names_that_meet_get_different_numbers_and_give_them_back() {
        let mut ids = Ids::default();
        let first = ids.take(b"a");
        ids.taken.insert(first, 1); // as if another name had it
        let second = ids.take(b"a");
        assert_ne!(first, second);
        ids.release(first);
        ids.release(second);
        assert_eq!(ids.take(b"a"), first);
        assert_eq!(ids.taken.len(), 1);
    }

    #[test]
    fn ten_thousand_names_that_hardly_differ_get_different_numbers() {
        let mut ids = Ids::default();
        let name = |number: usize| {
            format!("{}/{}{number}:{}/tcp cluster", "n".repeat(63), "s".repeat(58), "p".repeat(15))
        };
        let numbers: std::collections::HashSet<u32> =
            (0..10_000).map(|number| ids.take(name(number).as_bytes())).collect();
        assert_eq!(numbers.len(), 10_000);
    }
}
