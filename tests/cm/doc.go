// Package cm tests rdmacm over C libraries of its own (internal/fakelib), where
// every call can fail in every way, and every event can come.
package cm
