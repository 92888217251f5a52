// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package matrix

import "testing"

// sniffer keeps packets on Linux, where the tests run.
type sniffer struct{}

func sniff(t *testing.T, _ string) *sniffer {
	t.Helper()
	t.Skip("needs Linux")
	return nil
}

func (*sniffer) check(*testing.T) {}
