//! Tests with an independent ground truth.

mod verifier;
