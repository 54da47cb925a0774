//! Rules of policy routing: which packets are routed by a table of their own.

pub(super) mod apply;
mod desired;
mod diff;
mod observed;

pub(super) use observed::Rules;
