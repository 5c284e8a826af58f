//! The broker and name server.
