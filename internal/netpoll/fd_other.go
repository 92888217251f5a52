//go:build !unix

package netpoll

import (
	"context"
	"errors"
	"fmt"
)

// FD exists so that users of this package compile; there are none to be had.
type FD struct{}

// New returns an error that is errors.ErrUnsupported.
func New(fd int, name string) (*FD, error) {
	return nil, fmt.Errorf("%s: %w", name, errors.ErrUnsupported)
}

// Wait returns errors.ErrUnsupported.
func (f *FD) Wait(ctx context.Context, ready <-chan struct{}, try func() (done bool, err error)) error {
	return errors.ErrUnsupported
}

// Kick does nothing.
func (f *FD) Kick() {}

// Close does nothing.
func (f *FD) Close() error { return nil }

// SetNonblock is for descriptors of Unix.
func SetNonblock(int) error { return errors.ErrUnsupported }

// Dup is for descriptors of Unix.
func Dup(int) (int, error) { return -1, errors.ErrUnsupported }
