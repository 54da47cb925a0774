//! Policy routing rules, which select packets that are routed by a separate table.

pub(super) mod apply;
mod desired;
mod diff;
mod observed;

pub(super) use observed::ObservedRules;
