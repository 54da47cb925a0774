//! A node in a network namespace of its own, the real plugin, real containers' namespaces.

mod crash;
mod faults;
mod life;
mod up;
mod world;
