// SPDX-License-Identifier: Apache-2.0

package weak

import "testing"

func TestClamp(t *testing.T) {
	if Clamp(5, 7, 9) != 7 || Clamp(8, 7, 9) != 8 || Clamp(11, 7, 9) != 9 {
		t.Fatal("Clamp")
	}
}

func TestOthers(t *testing.T) {
	if Join("a", "b") != "a b" || Count(2) != 2 {
		t.Fatal("Join, Count")
	}
}
