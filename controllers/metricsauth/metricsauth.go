// Package metricsauth serves metrics only to clients that the API server authenticates and authorizes. The filter of
// controller-runtime does the same, but it links the API server's packages: the operator's binary would grow by 60 %
// and its memory by 45 %.
package metricsauth

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// reviewTimeout limits both reviews of a request together. It is Prometheus's default scrape timeout.
const reviewTimeout = 10 * time.Second

// Filter is the FilterProvider of the metrics server.
func Filter(config *rest.Config, httpClient *http.Client) (metricsserver.Filter, error) {
	mapper := meta.NewDefaultRESTMapper(nil) // so that no request waits for discovery
	mapper.Add(authenticationv1.SchemeGroupVersion.WithKind("TokenReview"), meta.RESTScopeRoot)
	mapper.Add(authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"), meta.RESTScopeRoot)
	c, err := client.New(config, client.Options{HTTPClient: httpClient, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("create the client for token and access reviews: %w", err)
	}
	return func(log logr.Logger, handler http.Handler) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			status, err := authorize(req, c)
			if err != nil {
				log.Error(err, "request for metrics cannot be authorized")
			}
			if status != http.StatusOK {
				http.Error(w, http.StatusText(status), status)
				return
			}
			handler.ServeHTTP(w, req)
		}), nil
	}, nil
}

// authorize returns the HTTP status for a request: 200 if its bearer token belongs to a user who may use this method on
// this path.
func authorize(req *http.Request, c client.Client) (status int, err error) {
	scheme, token, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
		return http.StatusUnauthorized, nil
	}
	ctx, cancel := context.WithTimeout(req.Context(), reviewTimeout)
	defer cancel()
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := c.Create(ctx, review); err != nil {
		return http.StatusInternalServerError, fmt.Errorf("review a token: %w", err)
	}
	if !review.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := review.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	access := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: strings.ToLower(req.Method),
			Path: req.URL.Path}}}
	if err := c.Create(ctx, access); err != nil {
		return http.StatusInternalServerError, fmt.Errorf("review the access of %s: %w", user.Username, err)
	}
	if !access.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}
