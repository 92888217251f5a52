// SPDX-License-Identifier: Apache-2.0

package object

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParentsChange(t *testing.T) {
	var old, other, child Object
	old.InitUnlisted("old")
	other.InitUnlisted("other")
	child.InitUnlisted("child", &old)
	shut := func(o *Object) error { return o.Close(nil, func() error { return nil }) }

	child.AddParent(&other)
	child.AddParent(&other)
	require.EqualError(t, shut(&old), "old: close first: child")
	require.EqualError(t, shut(&other), "other: close first: child")

	child.RemoveParent(&old)
	child.RemoveParent(&old)
	require.NoError(t, shut(&old))
	require.EqualError(t, shut(&other), "other: close first: child")

	require.NoError(t, shut(&child))
	require.NoError(t, shut(&other))
}
