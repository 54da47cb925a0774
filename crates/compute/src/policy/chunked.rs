//! A vector that grows chunk by chunk: its elements never move, and it allocates no more than it needs, however long
//! it gets. Elements are addressed by an ID.

use super::ids::TableId;
use std::marker::PhantomData;

const CHUNK_ELEMENTS: usize = 1024;

#[derive(Debug)]
pub(super) struct ChunkedVec<I, T> {
    chunks: Vec<Box<[T]>>,
    id: PhantomData<I>,
}

impl<I, T> Default for ChunkedVec<I, T> {
    fn default() -> Self {
        ChunkedVec { chunks: Vec::new(), id: PhantomData }
    }
}

impl<I: TableId, T: Default> ChunkedVec<I, T> {
    pub fn get(&self, id: I) -> Option<&T> {
        let place = id.number() as usize;
        self.chunks.get(place / CHUNK_ELEMENTS)?.get(place % CHUNK_ELEMENTS)
    }

    pub fn get_mut(&mut self, id: I) -> Option<&mut T> {
        let place = id.number() as usize;
        self.chunks.get_mut(place / CHUNK_ELEMENTS)?.get_mut(place % CHUNK_ELEMENTS)
    }

    /// Returns the element of an ID, creating it if necessary.
    pub fn at(&mut self, id: I) -> &mut T {
        let place = id.number() as usize;
        while self.chunks.len() * CHUNK_ELEMENTS <= place {
            self.chunks.push(std::iter::repeat_with(T::default).take(CHUNK_ELEMENTS).collect());
        }
        &mut self.chunks[place / CHUNK_ELEMENTS][place % CHUNK_ELEMENTS]
    }

    /// Returns all elements from the first on; elements behind the last one that was requested may be included.
    pub fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        (0..).map(I::new).zip(self.chunks.iter().flatten())
    }
}

/// Allocates IDs; released IDs are reused first.
#[derive(Debug)]
pub(super) struct IdAllocator<I> {
    next: u32,
    free: Vec<I>,
}

impl<I> Default for IdAllocator<I> {
    fn default() -> Self {
        IdAllocator { next: 0, free: Vec::new() }
    }
}

impl<I: TableId> IdAllocator<I> {
    pub fn take(&mut self) -> I {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            I::new(self.next - 1)
        })
    }

    pub fn give_back(&mut self, id: I) {
        self.free.push(id);
    }
}
