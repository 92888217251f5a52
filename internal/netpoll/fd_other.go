// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package netpoll

import (
	"context"
	"errors"
	"fmt"
)

// FD is a descriptor in the netpoller. This system has none, so New always
// fails.
type FD struct{}

// New fails with errors.ErrUnsupported.
func New(fd int, name string) (*FD, error) {
	return nil, fmt.Errorf("%s: %w", name, errors.ErrUnsupported)
}

// Wait fails with errors.ErrUnsupported.
func (f *FD) Wait(ctx context.Context, ready <-chan struct{}, try func() (done bool, err error)) error {
	return errors.ErrUnsupported
}

// Kick does nothing.
func (f *FD) Kick() {}

// Close does nothing.
func (f *FD) Close() error { return nil }

// SetNonblock fails with errors.ErrUnsupported.
func SetNonblock(int) error { return errors.ErrUnsupported }

// Dup fails with errors.ErrUnsupported.
func Dup(int) (int, error) { return -1, errors.ErrUnsupported }
