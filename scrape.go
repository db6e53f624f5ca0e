package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/wait"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// answerTTL is how long an answer of the API server about a scraper that it knows holds, by HTTP status. A denial holds
// for less long: somebody waits for the permission that was just given.
var answerTTL = map[int]time.Duration{http.StatusOK: time.Minute, http.StatusForbidden: 30 * time.Second}

// scrapers serve metrics to those alone whose bearer token the API server authenticates and whom it allows to get the
// path. The filter of controller-runtime does the same by means of the API server's own packages, which are a third of
// the operator's program and of its memory.
type scrapers struct {
	authentication authenticationclient.TokenReviewInterface
	authorization  authorizationclient.SubjectAccessReviewInterface
	answers        *cache.Expiring // HTTP status by digest of verb, path and token
	retries        wait.Backoff    // of a review that failed
}

// withAccessReview is a filter for the metrics server.
func withAccessReview(config *rest.Config, httpClient *http.Client) (metricsserver.Filter, error) {
	s, err := newScrapers(config, httpClient)
	if err != nil {
		return nil, err
	}
	return s.filter, nil
}

func newScrapers(config *rest.Config, httpClient *http.Client) (*scrapers, error) {
	authentication, err := authenticationclient.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("create a client for token reviews: %w", err)
	}
	authorization, err := authorizationclient.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("create a client for access reviews: %w", err)
	}
	return &scrapers{authentication.TokenReviews(), authorization.SubjectAccessReviews(), cache.NewExpiring(),
		wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: .2, Steps: 5}}, nil
}

func (s *scrapers) filter(log logr.Logger, handler http.Handler) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		status, err := s.answer(req)
		if err != nil {
			log.Error(err, "whether a scraper may read metrics is not known")
		}
		if status != http.StatusOK {
			http.Error(w, http.StatusText(status), status)
			return
		}
		handler.ServeHTTP(w, req)
	}), nil
}

// answer is the HTTP status for a request; 200 for one that is allowed.
func (s *scrapers) answer(req *http.Request) (int, error) {
	scheme, token, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
		return http.StatusUnauthorized, nil
	}
	verb := strings.ToLower(req.Method)
	key := sha256.Sum256([]byte(verb + "\x00" + req.URL.Path + "\x00" + token))
	if status, ok := s.answers.Get(key); ok {
		return status.(int), nil
	}
	ctx, cancel := context.WithTimeout(req.Context(), 10*time.Second)
	defer cancel()
	var status int
	var err error
	end := wait.ExponentialBackoffWithContext(ctx, s.retries, func(ctx context.Context) (bool, error) {
		status, err = s.review(ctx, token, verb, req.URL.Path)
		return err == nil || refused(err), nil
	})
	if err := cmp.Or(err, end); err != nil {
		return http.StatusInternalServerError, err
	}
	if ttl, ok := answerTTL[status]; ok { // tokens that nobody issued are as many as somebody likes to make up
		s.answers.Set(key, status, ttl)
	}
	return status, nil
}

// refused reports whether the API server will answer the same another time.
func refused(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code/100 == 4 && !apierrors.IsTooManyRequests(err) &&
		!apierrors.IsTimeout(err)
}

// review asks the API server who has a token, and what the API server allows that user.
func (s *scrapers) review(ctx context.Context, token, verb, path string) (int, error) {
	who, err := s.authentication.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return 0, fmt.Errorf("review a token: %w", err)
	case !who.Status.Authenticated:
		return http.StatusUnauthorized, nil
	}
	user := who.Status.User
	spec := authorizationv1.SubjectAccessReviewSpec{User: user.Username, UID: user.UID, Groups: user.Groups,
		Extra:                 map[string]authorizationv1.ExtraValue{},
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: verb, Path: path}}
	for name, values := range user.Extra {
		spec.Extra[name] = authorizationv1.ExtraValue(values)
	}
	may, err := s.authorization.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return 0, fmt.Errorf("review the access of %s: %w", user.Username, err)
	case !may.Status.Allowed:
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}
