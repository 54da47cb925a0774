//! Storage for millions of short texts: an allocation for each would cost as much as the text.

use hashbrown::HashMap;

/// Size of a chunk in bytes; a longer text has a separate chunk.
pub(super) const ARENA_CHUNK_BYTES: usize = 1 << 16;

/// Location of a text: the upper half of `at` is the chunk, the lower half the offset in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ArenaSpan {
    at: u32,
    len: u32,
}

/// Bytes of short texts, in chunks.
#[derive(Debug, Default)]
pub(super) struct TextArena {
    chunks: Vec<Vec<u8>>,
    /// The chunk that is being filled.
    open: usize,
    /// Released spans, by length.
    spare: HashMap<u32, Vec<u32>>,
}

impl TextArena {
    pub fn get(&self, span: ArenaSpan) -> &[u8] {
        let start = span.at as usize % ARENA_CHUNK_BYTES;
        let chunk = self.chunks.get(span.at as usize / ARENA_CHUNK_BYTES);
        chunk.and_then(|chunk| chunk.get(start..start + span.len as usize)).unwrap_or_default()
    }

    pub fn put(&mut self, text: &[u8]) -> ArenaSpan {
        let len = text.len() as u32;
        if let Some(at) = self.spare.get_mut(&len).and_then(Vec::pop) {
            let start = at as usize % ARENA_CHUNK_BYTES;
            let chunk = &mut self.chunks[at as usize / ARENA_CHUNK_BYTES];
            chunk[start..start + text.len()].copy_from_slice(text);
            return ArenaSpan { at, len };
        }
        if text.len() > ARENA_CHUNK_BYTES {
            self.chunks.push(text.to_vec());
            return ArenaSpan { at: ((self.chunks.len() - 1) * ARENA_CHUNK_BYTES) as u32, len };
        }
        if self.chunks.get(self.open).is_none_or(|chunk| chunk.len() + text.len() > ARENA_CHUNK_BYTES) {
            self.open = self.chunks.len();
            self.chunks.push(Vec::with_capacity(ARENA_CHUNK_BYTES));
        }
        let chunk = &mut self.chunks[self.open];
        let at = (self.open * ARENA_CHUNK_BYTES + chunk.len()) as u32;
        chunk.extend_from_slice(text);
        ArenaSpan { at, len }
    }

    pub fn take_back(&mut self, span: ArenaSpan) {
        match span.len as usize {
            0 => {}
            1..=ARENA_CHUNK_BYTES => self.spare.entry(span.len).or_default().push(span.at),
            _ => self.chunks[span.at as usize / ARENA_CHUNK_BYTES] = Vec::new(),
        }
    }
}
