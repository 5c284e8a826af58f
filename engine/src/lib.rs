//! An embeddable log store.
