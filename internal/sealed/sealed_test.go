// SPDX-License-Identifier: Apache-2.0

package sealed_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/sealed"
)

func TestOpen(t *testing.T) {
	b := []byte("open")
	s := sealed.Seal(b)
	require.Equal(t, b, sealed.Open(s))
	of := reflect.TypeOf(s)
	require.Zero(t, reflect.PointerTo(of).NumMethod(), "a program could call it")
	for i := range of.NumField() {
		require.False(t, of.Field(i).IsExported(), "a program could read it")
	}
}
