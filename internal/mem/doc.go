// Package mem provides memory outside of Go's heap, which C and devices may keep
// pointers to and which may itself hold pointers.
package mem
