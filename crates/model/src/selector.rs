//! The selector language: parse, print canonically, evaluate, identify.
