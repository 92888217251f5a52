// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package netpoll_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/netpoll"
)

func TestNewIsUnsupported(t *testing.T) {
	f, err := netpoll.New(0, "channel")
	require.Nil(t, f)
	require.True(t, errors.Is(err, errors.ErrUnsupported))
}
