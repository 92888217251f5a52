// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package hotplug

import (
	"context"
	"errors"
	"iter"
)

// Listener is not supported on this system.
type Listener struct{}

// Listen returns errors.ErrUnsupported.
func Listen() (*Listener, error) { return nil, errors.ErrUnsupported }

// Events returns nothing.
func (*Listener) Events(context.Context) iter.Seq[Event] { return func(func(Event) bool) {} }
