// SPDX-License-Identifier: Apache-2.0

package mesh

// rounds returns the pairs of n hosts in rounds. A host is in one pair of a
// round at most, and each pair is in one round.
//
// The hosts sit in a circle around the last one, or around an empty place if n
// is odd. In each round, those on opposite sides are pairs. Then all hosts but
// the one in the middle move on by one place.
func rounds(n int) (all [][][2]int) {
	places := n + n%2
	for r := range places - 1 {
		var round [][2]int
		add := func(a, b int) {
			if a < n && b < n {
				round = append(round, [2]int{min(a, b), max(a, b)})
			}
		}
		add(r, places-1)
		for i := 1; i < places/2; i++ {
			add((r+i)%(places-1), (r-i+places-1)%(places-1))
		}
		all = append(all, round)
	}
	return all
}
