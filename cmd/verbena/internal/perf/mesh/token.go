// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
)

// TokenVariable is the environment variable that has the token.
const TokenVariable = "VERBENA_TOKEN"

// minToken is the minimum number of bytes in a token.
const minToken = 16

// Token is a secret that a coordinator and its agents share. It proves that an
// end may ask an agent to measure. It is never sent.
type Token []byte

// ReadToken returns the token in the environment.
func ReadToken() (Token, error) {
	token := os.Getenv(TokenVariable)
	if len(token) < minToken {
		return nil, fmt.Errorf("the environment has no %s of %d bytes or more, which agents and their coordinator share: export %[1]s=$(openssl rand -hex 16)", TokenVariable, minToken)
	}
	return Token(token), nil
}

// proof returns the text with which an end that knows the token answers an
// agent's challenge. It holds for one role and one measurement.
func (t Token) proof(challenge, role, measurement string) string {
	mac := hmac.New(sha256.New, t)
	fmt.Fprintf(mac, "%q %q %q", challenge, role, measurement)
	return hex.EncodeToString(mac.Sum(nil))
}

// newID returns a text that no other end knows or guesses.
func newID() string { return rand.Text() }
