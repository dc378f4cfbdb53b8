//! Tests of the whole store, by what they protect.

mod basic;
mod kit;
