//! Helpers for whole-system tests.
