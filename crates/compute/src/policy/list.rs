//! A list that grows piece by piece: it never moves, and has no more room than it needs, however long it gets.

const PIECE: usize = 1024;

#[derive(Debug)]
pub(super) struct List<T> {
    pieces: Vec<Box<[T]>>,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        List { pieces: Vec::new() }
    }
}

impl<T: Default> List<T> {
    pub fn get(&self, place: u32) -> Option<&T> {
        self.pieces.get(place as usize / PIECE)?.get(place as usize % PIECE)
    }

    pub fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        self.pieces.get_mut(place as usize / PIECE)?.get_mut(place as usize % PIECE)
    }

    /// What is at a place, which is there from now on.
    pub fn at(&mut self, place: u32) -> &mut T {
        while self.pieces.len() * PIECE <= place as usize {
            self.pieces.push(std::iter::repeat_with(T::default).take(PIECE).collect());
        }
        &mut self.pieces[place as usize / PIECE][place as usize % PIECE]
    }

    /// From the first place on; those behind the last that was asked for may be there too.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter().flatten()
    }
}

/// Numbers for what is put into a list: those given back are given out again first.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    next: u32,
    free: Vec<u32>,
}

impl Numbers {
    pub fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    pub fn give_back(&mut self, number: u32) {
        self.free.push(number);
    }
}
