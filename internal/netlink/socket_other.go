// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package netlink

import "errors"

// socket is a netlink socket, which this system does not have.
type socket struct{}

func openSocket(int) (socket, error) { return socket{}, errors.ErrUnsupported }

func (socket) send([]byte) error { return errors.ErrUnsupported }

func (socket) receive() ([]byte, error) { return nil, errors.ErrUnsupported }

func (socket) close() error { return nil }
