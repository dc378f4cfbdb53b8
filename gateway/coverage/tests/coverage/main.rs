//! The coverage engine against its rules, against a slow reference, and against its bounds.

mod bounds;
mod loss;
mod property;
mod reference;
mod rules;
mod world;
